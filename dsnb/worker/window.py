"""What of a task's elements is in memory, who has had what, and what may be produced next.

A pure core: no threads, no clock, no sockets.

Theory of operation. A task produces one sequence of elements, numbered from 0. The window holds a contiguous piece of
it, `tail` up to `head`, as frames. *Trainers* walk along the sequence, each with its own place (`next`: the first
element not sent to it). A trainer has any number of *readers* (clients); they share the trainer's place, so among them
each element goes out once. A reader gets what its credit allows, and tells how much of it was consumed; what was sent
and not consumed goes back to its trainer when the reader leaves, and is sent to the next one first.

A job without the cross-trainer cache is the same thing with one trainer for all, and one difference, `keep`:

    keep = False   an element is let go when it has been consumed (first come, first served: all readers of a job share
                   one pass). Nothing is ever evicted, so the producer waits.
    keep = True    an element stays until its bytes are needed for a new one (the cross-trainer cache). A trainer that
                   falls behind the tail is moved on, and what it missed is counted as skipped.

`frontier` is the furthest `next` of all trainers. Elements behind it are hits for whoever comes later; those beyond it
are misses for the trainer that goes there first. What lies beyond the frontier is never evicted.

The producer keeps a bounded number of bytes beyond the frontier and stops: nobody asked for more. The bound begins low
and is doubled, up to `ahead`, when a reader finds nothing although the producer had stopped at the bound. So neither
a reader that is slower than the pipeline nor one that is faster costs work and memory that do not help it.

An error in an element's place goes to the trainers that were there when it happened; later ones pass over it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any

_FIRST_AHEAD = 128 << 10


@dataclass(slots=True)
class Entry:
    """One frame in the window; `left` counts its elements that were not consumed (only used without `keep`)."""

    first: int
    count: int
    nbytes: int
    frame: Any
    failed: bool
    left: int

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass(slots=True, order=True)
class Run:
    """Consecutive elements sent to one reader; those below `hits_until` were asked for by another trainer before."""

    first: int
    count: int
    nbytes: int
    hits_until: int

    @property
    def end(self) -> int:
        return self.first + self.count

    def cut(self, count: int) -> Run:
        """Take the first `count` elements off this run and return them."""
        nbytes = self.nbytes * count // self.count
        head = Run(self.first, count, nbytes, self.hits_until)
        self.first += count
        self.count -= count
        self.nbytes -= nbytes
        return head


@dataclass(slots=True)
class Trainer:
    """One place in the sequence, shared by all readers of one trainer id."""

    next: int
    since: int
    readers: set[str] = field(default_factory=set)
    returned: list[Run] = field(default_factory=list)
    consumed: int = 0
    hits: int = 0
    misses: int = 0
    skipped: int = 0


@dataclass(slots=True)
class Reader:
    """One client's hold: counters are cumulative over its reading, `runs` is what was sent and not consumed."""

    trainer: str
    max_bytes: int = 0
    granted: int = 0
    sent: int = 0
    consumed: int = 0
    runs: deque[Run] = field(default_factory=deque)
    nbytes: int = 0
    starved: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes out to a reader: `count` elements of a frame from `start` on, the first one numbered `index`."""

    frame: Any
    index: int
    start: int
    count: int


class Window:
    """The elements of one task that are in memory, and the places of its readers.

    Args:
        capacity: Most bytes in memory; with `keep` only, where room is made by evicting.
        ahead: Most bytes to produce beyond the furthest trainer.
        keep: Whether elements stay for other trainers after they were consumed.
    """

    def __init__(self, *, capacity: int, ahead: int, keep: bool) -> None:
        self.capacity = capacity
        self.ahead = ahead
        self.keep = keep
        self.head = 0
        self.nbytes = 0
        self.evicted = 0
        self.finished = False
        self.frontier = 0
        self.trainers: dict[str, Trainer] = {}
        self.readers: dict[str, Reader] = {}
        self._entries: list[Entry] = []
        self._unsent = 0
        self._ahead_now = min(ahead, _FIRST_AHEAD)
        self._stopped_at_bound = False

    @property
    def tail(self) -> int:
        """The first element in memory; `head` where there is none."""
        return self._entries[0].first if self._entries else self.head

    @property
    def done(self) -> bool:
        """Whether everything was produced and, without `keep`, consumed: a reader that comes now gets nothing."""
        return self.finished and (self.keep or not self._entries)

    # ---- the producer's side

    def wants_more(self) -> bool:
        """Whether another frame should be produced now."""
        if self.finished:
            return False
        return self._unsent < self._bound or self.frontier == self.head

    def append(self, frame: Any, count: int, nbytes: int, failed: bool = False) -> None:
        """Add a frame at the head; evicts from the tail what is over the capacity and not beyond the frontier."""
        charge = max(nbytes, count)  # elements without bytes still take room
        while self.keep and self.nbytes + charge > self.capacity and self._entries:
            if self._entries[0].end > self.frontier:
                break
            self._evict_first()
        self._entries.append(Entry(self.head, count, charge, frame, failed, count))
        self.head += count
        self.nbytes += charge
        self._unsent += charge
        self._stopped_at_bound |= self._unsent >= self._bound

    def finish(self) -> None:
        """Learn that the sequence has come to its end."""
        self.finished = True

    def _evict_first(self) -> None:
        entry = self._entries.pop(0)
        self.nbytes -= entry.nbytes
        self.evicted += entry.count

    # ---- the readers' side

    def attach(self, client: str, trainer: str, received: int = 0, consumed: int = 0) -> None:
        """Let a client read; one that comes back after its connection broke goes on behind what it received."""
        if client in self.readers:
            self._reattach(self.readers[client], received, consumed)
            return
        place = self.trainers.get(trainer)
        if place is None:
            place = self.trainers[trainer] = Trainer(next=self.tail, since=self.head)
        place.readers.add(client)
        # A reader that comes with counters of its own was known to an earlier incarnation: it starts at nought here.
        self.readers[client] = Reader(trainer, sent=received, consumed=received, granted=received)

    def _reattach(self, reader: Reader, received: int, consumed: int) -> None:
        self._consume(reader, consumed)
        trainer = self.trainers[reader.trainer]
        while reader.sent > received and reader.runs:
            run = reader.runs.pop()
            back = min(run.count, reader.sent - received)
            kept = run.cut(run.count - back)
            if kept.count:
                reader.runs.append(kept)
            reader.sent -= back
            reader.nbytes -= run.nbytes
            insort(trainer.returned, run)
        reader.granted = reader.sent

    def credit(self, client: str, granted: int, consumed: int, max_bytes: int) -> None:
        """Take a reader's counters in; they only grow. With `keep`, a reader holds at most a quarter of the window."""
        reader = self.readers[client]
        reader.granted = max(reader.granted, granted)
        reader.max_bytes = min(max_bytes, self.capacity // 4) if self.keep else max_bytes
        self._consume(reader, consumed)

    def recall(self, client: str) -> int:
        """Take back credit that is not used; what is left is what was sent."""
        reader = self.readers[client]
        reader.granted = reader.sent
        return reader.sent

    def leave(self, client: str, consumed: int | None = None) -> None:
        """Let a reader go; what it had and did not consume is for its trainer's next reader."""
        reader = self.readers.get(client)
        if reader is None:
            return
        if consumed is not None:
            self._consume(reader, consumed)
        trainer = self.trainers[reader.trainer]
        for run in reader.runs:
            insort(trainer.returned, run)
        trainer.readers.discard(client)
        del self.readers[client]

    def take(self, client: str) -> Taken | None:
        """The next elements for a reader, as far as its credit goes; None where there are none or no credit."""
        reader = self.readers[client]
        room = reader.granted - reader.sent
        if room <= 0 or (reader.runs and reader.nbytes >= reader.max_bytes):
            return None
        trainer = self.trainers[reader.trainer]
        run = self._returned(trainer, room) or self._fresh(trainer, room)
        if run is None:
            self._note_starving(reader)
            return None
        reader.starved = False
        entry = self._entry_at(run.first)
        reader.runs.append(run)
        reader.sent += run.count
        reader.nbytes += run.nbytes
        return Taken(entry.frame, run.first, run.first - entry.first, run.count)

    def at_end(self, client: str) -> bool:
        """Whether nothing more will come for this reader."""
        trainer = self.trainers[self.readers[client].trainer]
        return self.finished and not trainer.returned and self._next(trainer) >= self.head

    def offset(self, trainer_id: str) -> int:
        """The first element that a trainer has not consumed."""
        trainer = self.trainers[trainer_id]
        firsts = [run.first for run in trainer.returned[:1]]
        # Not only the oldest run of each: what came back from another reader lies behind it, and was sent later.
        firsts += [run.first for client in trainer.readers for run in self.readers[client].runs]
        return min([self._next(trainer), *firsts])

    # ---- inside

    @property
    def _bound(self) -> int:
        """Bytes to keep ready beyond the frontier."""
        return min(self._ahead_now, self.capacity // 2) if self.keep else self._ahead_now

    def _note_starving(self, reader: Reader) -> None:
        """A reader has nothing left and finds nothing: more should be kept ready, if the producer could have."""
        if not reader.runs and not reader.starved and not self.finished:
            reader.starved = True
            if self._stopped_at_bound:
                self._stopped_at_bound = False
                self._ahead_now = min(self.ahead, 2 * self._ahead_now)

    def _returned(self, trainer: Trainer, room: int) -> Run | None:
        """What came back from a reader that left, as far as it is still in memory."""
        while trainer.returned:
            run = trainer.returned[0]
            if run.first < self.tail:
                gone = min(run.count, self.tail - run.first)
                run.cut(gone)
                trainer.skipped += gone
            if run.count:
                entry = self._entry_at(run.first)
                part = run.cut(min(run.count, room, entry.end - run.first))
                if not run.count:
                    trainer.returned.pop(0)
                return part
            trainer.returned.pop(0)
        return None

    def _fresh(self, trainer: Trainer, room: int) -> Run | None:
        if trainer.next < self.tail:
            trainer.skipped += self.tail - trainer.next
        trainer.next = first = self._next(trainer)
        if first >= self.head:
            return None
        entry = self._entry_at(first)
        count = min(room, entry.end - first)
        run = Run(first, count, entry.nbytes * count // entry.count, self.frontier)
        trainer.next = first + count
        if trainer.next > self.frontier:
            self._unsent -= self._bytes_between(self.frontier, trainer.next)
            self.frontier = trainer.next
        return run

    def _next(self, trainer: Trainer) -> int:
        """A trainer's next element: in memory, and past errors that happened before it came."""
        at = max(trainer.next, self.tail)
        while at < min(self.head, trainer.since):
            entry = self._entry_at(at)
            if not entry.failed:
                break
            at = entry.end
        return at

    def _consume(self, reader: Reader, consumed: int) -> None:
        trainer = self.trainers[reader.trainer]
        left = min(consumed, reader.sent) - reader.consumed
        while left > 0 and reader.runs:
            run = reader.runs[0]
            part = run.cut(min(left, run.count))
            if not run.count:
                reader.runs.popleft()
            left -= part.count
            reader.consumed += part.count
            reader.nbytes -= part.nbytes
            hits = max(0, min(part.end, part.hits_until) - part.first)
            trainer.consumed += part.count
            trainer.hits += hits
            trainer.misses += part.count - hits
            if not self.keep:
                self._release(part)

    def _release(self, run: Run) -> None:
        """Let consumed elements go: a frame's memory when its last element is consumed."""
        at = run.first
        while at < run.end:
            entry = self._entry_at(at)
            part = min(run.end, entry.end) - at
            entry.left -= part
            at += part
            if not entry.left:
                self.nbytes -= entry.nbytes
                entry.frame = None
        while self._entries and not self._entries[0].left:
            self._entries.pop(0)

    def _entry_at(self, index: int) -> Entry:
        return self._entries[bisect_right(self._entries, index, key=lambda entry: entry.first) - 1]

    def _bytes_between(self, first: int, end: int) -> int:
        """Bytes charged for the elements from `first` to `end`; exact over whole frames."""
        total = 0
        at = max(first, self.tail)
        while at < end:
            entry = self._entry_at(at)
            stop = min(end, entry.end)
            total += _share(entry, stop) - _share(entry, at)
            at = stop
        return total

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        at = self.tail
        for entry in self._entries:
            assert entry.first == at, "frames are not consecutive"
            assert 0 <= entry.left <= entry.count, "an element was consumed twice"
            at = entry.end
        assert at == self.head, "the last frame does not end at the head"
        assert self.nbytes == sum(e.nbytes for e in self._entries if self.keep or e.left), "bytes are miscounted"
        assert self._unsent == self._bytes_between(self.frontier, self.head), "unsent bytes are miscounted"
        assert self.frontier <= self.head, "something was sent before it was produced"
        for name, trainer in self.trainers.items():
            assert trainer.next <= max(self.frontier, self.tail, trainer.since), "a trainer is beyond the frontier"
            assert self.offset(name) <= max(self.head, trainer.next), "an offset is beyond the head"
            assert trainer.hits + trainer.misses == trainer.consumed, "hits and misses do not make up the consumed"
            assert all(self.readers[client].trainer == name for client in trainer.readers), "a reader is misplaced"
        for reader in self.readers.values():
            assert reader.consumed + sum(run.count for run in reader.runs) == reader.sent, "sent elements are missing"
            assert reader.nbytes == sum(run.nbytes for run in reader.runs), "a reader's bytes are miscounted"


def _share(entry: Entry, index: int) -> int:
    """Bytes charged for a frame's elements before `index`."""
    return entry.nbytes * (index - entry.first) // entry.count
