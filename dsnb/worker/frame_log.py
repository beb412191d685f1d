"""The frames of a `SharedLog`, in order: the oldest ones on disk if a trainer spills, the others in memory.

A pure core: a `FrameStore` does the disk I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

import msgspec


class FrameStore(Protocol):
    """Keeps frames that do not fit into memory and are still needed."""

    def put(self, frame: Any) -> Any | None:
        """Store a frame; returns its location, or None if there is no room."""

    def get(self, location: Any) -> Any:
        """The frame stored at a location."""

    def drop(self, location: Any) -> None:
        """Delete the frame stored at a location."""

    def has_room(self) -> bool:
        """Whether there is room for another frame."""
        ...


class Span(msgspec.Struct, order=True):
    """Consecutive elements sent to one reader; those below `hits_until` were sent to another trainer before (hits).

    If they did not arrive, because its connection broke, they are for the reader `owner` alone, as long as it is there.
    """

    first: int
    count: int
    nbytes: int
    hits_until: int
    owner: str = ""

    @property
    def end(self) -> int:
        return self.first + self.count

    def cut(self, count: int) -> Span:
        """Remove the first `count` elements from this span and return them as a span."""
        nbytes = self.nbytes * count // max(1, self.count)
        head = Span(self.first, count, nbytes, self.hits_until, self.owner)
        self.first += count
        self.count -= count
        self.nbytes -= nbytes
        return head


class LogEntry(msgspec.Struct):
    """One frame of the log; `left` counts its elements that were not consumed (only used without `keep`).

    A frame on disk has a `location` and no `frame`.
    """

    first: int
    count: int
    nbytes: int
    frame: Any
    failed: bool
    left: int = 0
    location: Any = None
    encoded_bytes: int = 0
    """Bytes of its cached encodings, made for readers in other processes."""

    @property
    def end(self) -> int:
        return self.first + self.count

    def bytes_between(self, first: int, stop: int) -> int:
        """Bytes charged for the elements `[first, stop)`. The charges of all parts of a frame add up to `nbytes`."""
        if stop - first == self.count:
            return self.nbytes
        return self.nbytes * (stop - self.first) // self.count - self.nbytes * (first - self.first) // self.count


def newest_entries(entries: Iterable[LogEntry], most: int) -> list[LogEntry]:
    """The first entries that have frames and hold `most` elements together; all of them if they hold fewer."""
    found: list[LogEntry] = []
    for entry in entries:
        if most <= 0:
            break
        if entry.frame is not None:
            found.append(entry)
            most -= entry.count
    return found


class FrameLog:
    """Holds consecutive frames: indices `[base, tail)` on disk, `[tail, head)` in memory.

    Args:
        store: Keeps spilled frames; None if nothing is spilled.
        first: The index of the first element that will be added.

    Attributes:
        head: The index of the next element to be produced.
        nbytes: Bytes of the frames in memory.
        encoded_bytes: Bytes of the cached encodings of these frames.
        evicted: How many elements were dropped, from memory or disk, without having been released.
        largest: Bytes of the largest frame so far.
        entries: The frames, the first `on_disk` of them on disk.
        on_disk: How many frames are on disk.
    """

    def __init__(self, store: FrameStore | None, first: int = 0) -> None:
        self.head = first
        self.nbytes = 0
        self.encoded_bytes = 0
        self.evicted = 0
        self.largest = 0
        self.entries: list[LogEntry] = []
        self.on_disk = 0
        self._firsts: list[int] = []
        """The first index of each entry, for binary search."""
        self._store = store

    @property
    def base(self) -> int:
        """The index of the first element that is kept, in memory or on disk; `head` if there is none."""
        return self.entries[0].first if self.entries else self.head

    @property
    def tail(self) -> int:
        """The index of the first element in memory; `head` if there is none."""
        entry = self.first_in_memory
        return self.head if entry is None else entry.first

    @property
    def first_in_memory(self) -> LogEntry | None:
        return self.entries[self.on_disk] if len(self.entries) > self.on_disk else None

    def add(self, frame: Any, count: int, nbytes: int, failed: bool) -> None:
        """Append a frame of `count` elements, charged `nbytes` bytes.

        Args:
            frame: The frame.
            count: Its number of elements.
            nbytes: The bytes charged for it while it is in memory.
            failed: Whether it is an error in an element's place.
        """
        self.entries.append(LogEntry(self.head, count, nbytes, frame, failed, count))
        self._firsts.append(self.head)
        self.head += count
        self.nbytes += nbytes
        self.largest = max(self.largest, nbytes)

    def add_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Charge a cached encoding of the frame that begins at `index`; False if that frame is no longer in memory."""
        if index < self.tail:
            return False
        entry = self.entry_at(index)
        entry.encoded_bytes += nbytes
        self.encoded_bytes += nbytes
        return True

    def can_spill(self) -> bool:
        """Whether another frame may be put on disk."""
        return self._store is not None and self._store.has_room()

    def spill_first(self) -> bool:
        """Move the first frame in memory to disk; False if the store has no room."""
        entry = self.entries[self.on_disk]
        entry.location = self._store.put(entry.frame) if self._store is not None else None
        if entry.location is None:
            return False
        entry.frame = None
        self.on_disk += 1
        self._subtract_bytes(entry)
        return True

    def _subtract_bytes(self, entry: LogEntry) -> None:
        self.nbytes -= entry.nbytes
        self.encoded_bytes -= entry.encoded_bytes
        entry.encoded_bytes = 0

    def drop_first(self) -> None:
        """Drop the first frame, from disk or memory."""
        entry = self._pop_first()
        self.evicted += entry.count
        if entry.location is None:
            self._subtract_bytes(entry)
            return
        assert self._store is not None
        self._store.drop(entry.location)
        self.on_disk -= 1

    def drop_frames(self) -> None:
        """Free all frames in memory; the counters stay, for a last report."""
        for entry in self.entries:
            entry.frame = None

    def drop_to_first_in_memory(self) -> None:
        """Drop all frames on disk and the first frame in memory."""
        while self.on_disk:
            self.drop_first()
        self.drop_first()

    def frame_of(self, entry: LogEntry) -> Any:
        """The entry's frame, read from disk if necessary."""
        if entry.location is None:
            return entry.frame
        assert self._store is not None
        return self._store.get(entry.location)

    def newest(self, most: int) -> list[LogEntry]:
        """The entries that hold the newest `most` elements in memory, the newest first."""
        return newest_entries(islice(reversed(self.entries), len(self.entries) - self.on_disk), most)

    def release(self, span: Span) -> None:
        """Count elements as consumed; a frame is freed when its last element is consumed."""
        at = span.first
        while at < span.end:
            entry = self.entry_at(at)
            part = min(span.end, entry.end) - at
            entry.left -= part
            at += part
            if not entry.left:
                self._subtract_bytes(entry)
                entry.frame = None
        # Entries leave in order, so a freed frame's entry stays, without its frame, until all older ones are consumed.
        while self.entries and not self.entries[0].left:
            self._pop_first()

    def _pop_first(self) -> LogEntry:
        del self._firsts[0]
        return self.entries.pop(0)

    def entry_at(self, index: int) -> LogEntry:
        """The entry of the frame that holds the element at `index`."""
        return self.entries[bisect_right(self._firsts, index) - 1]

    def bytes_between(self, first: int, end: int) -> int:
        """Bytes charged for the kept elements in `[first, end)`; exact for whole frames."""
        total = 0
        at = max(first, self.base)
        while at < end:
            entry = self.entry_at(at)
            stop = min(end, entry.end)
            total += entry.bytes_between(at, stop)
            at = stop
        return total

    def validate(self, *, keep: bool) -> None:
        """Assert the invariants that hold between any two calls."""
        at = self.base
        assert self._firsts == [entry.first for entry in self.entries], "frames are not found by their first elements"
        for number, entry in enumerate(self.entries):
            assert (entry.location is not None) == (number < self.on_disk), "frames on disk are not the first ones"
            assert entry.first == at, "frames are not consecutive"
            assert 0 <= entry.left <= entry.count, "an element was consumed twice"
            at = entry.end
        assert at == self.head, "the last frame does not end at the head"
        in_memory = self.entries[self.on_disk :]
        assert self.nbytes == sum(e.nbytes for e in in_memory if keep or e.left), "bytes are miscounted"
        assert self.encoded_bytes == sum(e.encoded_bytes for e in in_memory), "encoded forms are miscounted"
