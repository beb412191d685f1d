"""The frames of a window, in order: the first of them on disk, if anybody asked for that, the others in memory.

A pure core: where frames on disk really lie is a `Store`'s matter.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Protocol

from dsnb.dataclass import dataclass
from dsnb.worker.places import Span


class FrameStore(Protocol):
    """Where frames go that do not fit into memory and are still wanted."""

    def put(self, frame: Any) -> Any | None:
        """Keep a frame; gives what it is got by, or None if there is no room."""

    def get(self, location: Any) -> Any:
        """A frame that was kept."""

    def drop(self, location: Any) -> None:
        """Let a frame go."""

    def has_room(self) -> bool:
        """Whether there is room for another frame."""
        ...


@dataclass(slots=True)
class LogEntry:
    """One frame in the window; `left` counts its elements that were not consumed (only used without `keep`).

    A frame on disk has a `location` there, and no `frame`.
    """

    first: int
    count: int
    nbytes: int
    frame: Any
    failed: bool
    left: int
    location: Any = None
    encoded_bytes: int = 0
    """Bytes of what is kept beside it, encoded for readers of other processes."""

    @property
    def end(self) -> int:
        return self.first + self.count

    def bytes_between(self, first: int, stop: int) -> int:
        """Bytes charged for some of its elements; those of all its parts make up its own."""
        if stop - first == self.count:
            return self.nbytes
        return self.nbytes * (stop - self.first) // self.count - self.nbytes * (first - self.first) // self.count


class FrameLog:
    """Holds consecutive frames, `base` up to `tail` on disk and `tail` up to `head` in memory.

    Attributes:
        head: The index of the next element to be produced.
        nbytes: Bytes of the frames in memory.
        encoded_bytes: Bytes of their encoded forms that are kept with them.
        evicted: Elements that were let go without having been released.
        largest: Bytes of the largest frame so far.
        entries: The frames, the first `on_disk` of them on disk.
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
        """Where each entry begins, to find them by."""
        self._store = store

    @property
    def base(self) -> int:
        """The first element that is kept, in memory or on disk; `head` where there is none."""
        return self.entries[0].first if self.entries else self.head

    @property
    def tail(self) -> int:
        """The first element in memory; `head` where there is none."""
        entry = self.first_in_memory
        return self.head if entry is None else entry.first

    @property
    def first_in_memory(self) -> LogEntry | None:
        return self.entries[self.on_disk] if len(self.entries) > self.on_disk else None

    def add(self, frame: Any, count: int, nbytes: int, failed: bool) -> None:
        """Put a frame at the head."""
        self.entries.append(LogEntry(self.head, count, nbytes, frame, failed, count))
        self._firsts.append(self.head)
        self.head += count
        self.nbytes += nbytes
        self.largest = max(self.largest, nbytes)

    def add_encoded_bytes(self, index: int, nbytes: int) -> bool:
        """Count what is kept beside the frame that begins at an index; False where that is not in memory any more."""
        if index < self.tail:
            return False
        entry = self.entry_at(index)
        entry.encoded_bytes += nbytes
        self.encoded_bytes += nbytes
        return True

    def can_spill(self) -> bool:
        """Whether there is room on disk."""
        return self._store is not None and self._store.has_room()

    def spill_first(self) -> bool:
        """Put the first frame in memory on disk; False if that does not go."""
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
        """Let the first frame go, wherever it is."""
        entry = self._pop_first()
        self.evicted += entry.count
        if entry.location is None:
            self._subtract_bytes(entry)
            return
        assert self._store is not None
        self._store.drop(entry.location)
        self.on_disk -= 1

    def drop_frames(self) -> None:
        """Keep no frame any longer; what is counted stays, for a last report."""
        for entry in self.entries:
            entry.frame = None

    def drop_to_first_in_memory(self) -> None:
        """Let the first frame in memory go, and all on disk before it."""
        while self.on_disk:
            self.drop_first()
        self.drop_first()

    def frame_of(self, entry: LogEntry) -> Any:
        """A frame, read from disk if it lies there."""
        if entry.location is None:
            return entry.frame
        assert self._store is not None
        return self._store.get(entry.location)

    def release(self, span: Span) -> None:
        """Let consumed elements go: a frame's memory when its last element is consumed."""
        at = span.first
        while at < span.end:
            entry = self.entry_at(at)
            part = min(span.end, entry.end) - at
            entry.left -= part
            at += part
            if not entry.left:
                self._subtract_bytes(entry)
                entry.frame = None
        while self.entries and not self.entries[0].left:
            self._pop_first()

    def _pop_first(self) -> LogEntry:
        del self._firsts[0]
        return self.entries.pop(0)

    def entry_at(self, index: int) -> LogEntry:
        """The frame with the element of that index."""
        return self.entries[bisect_right(self._firsts, index) - 1]

    def bytes_between(self, first: int, end: int) -> int:
        """Bytes charged for the elements from `first` to `end`; exact over whole frames."""
        total = 0
        at = max(first, self.base)
        while at < end:
            entry = self.entry_at(at)
            stop = min(end, entry.end)
            total += entry.bytes_between(at, stop)
            at = stop
        return total

    def validate(self, *, keep: bool) -> None:
        """Check what must hold between any two calls."""
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
