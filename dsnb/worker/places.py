"""Who reads a task's elements, where each one stands, and how it wants to be treated: the plain data of a window."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.wire.manner import Manner
from dsnb.wire.ranges import Ranges


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
        nbytes = self.nbytes * count // max(1, self.count)
        head = Run(self.first, count, nbytes, self.hits_until)
        self.first += count
        self.count -= count
        self.nbytes -= nbytes
        return head


@dataclass(slots=True)
class Trainer:
    """One place in the sequence, shared by all readers of one trainer id.

    `seen` is when it last gave a sign of life, by the clock that `tidy` is given; `waived` is set while it is treated
    as one that skips, because it holds others up and does not read; `gone` when it has left and no longer counts.
    `done` are the elements that it consumed. `elsewhere` are those that its readers had from an earlier incarnation of
    the task; they are not sent again unless a reader leaves them.
    """

    next: int
    since: int
    manner: Manner
    readers: set[str] = field(default_factory=set)
    returned: list[Run] = field(default_factory=list)
    consumed: int = 0
    hits: int = 0
    misses: int = 0
    skipped: int = 0
    spilled: int = 0
    seen: float = 0.0
    seen_consumed: int = -1
    waived: bool = False
    gone: bool = False
    done: Ranges = field(default_factory=Ranges)
    elsewhere: Ranges = field(default_factory=Ranges)

    def count(self, part: Run) -> None:
        """Count elements as consumed."""
        hits = max(0, min(part.end, part.hits_until) - part.first)
        self.consumed += part.count
        self.done.add(part.first, part.end)
        self.hits += hits
        self.misses += part.count - hits

    @property
    def holds(self) -> bool:
        """Whether elements that it has not consumed must be kept somewhere."""
        return self.wants_all and not self.waived and not self.gone

    @property
    def wants_all(self) -> bool:
        """Whether it asked to lose nothing."""
        return self.manner.on_lag in {"wait", "spill"}


@dataclass(slots=True)
class Reader:
    """One client's hold: counters are cumulative over its reading, `runs` is what was sent and not consumed.

    `taken` elements left the client's buffer, consumed or not; `buffered` are the sizes of runs that did not, each with
    the number of its elements and their bytes, and `nbytes` is their sum.
    """

    trainer: str
    max_bytes: int = 0
    granted: int = 0
    sent: int = 0
    taken: int = 0
    consumed: int = 0
    runs: deque[Run] = field(default_factory=deque)
    buffered: deque[list[int]] = field(default_factory=deque)
    nbytes: int = 0
    starved: bool = False

    @property
    def outstanding(self) -> int:
        """Elements that were sent and are on their way, or in the client's buffer."""
        return self.sent - self.taken

    def send(self, run: Run) -> None:
        """Count elements as sent."""
        self.runs.append(run)
        self.buffered.append([run.count, run.nbytes])
        self.sent += run.count
        self.nbytes += run.nbytes

    def take(self, taken: int) -> None:
        """Learn how many elements left the client's buffer in all."""
        left = min(taken, self.sent) - self.taken
        while left > 0:
            first = self.buffered[0]
            part = min(left, first[0])
            nbytes = first[1] * part // first[0]
            first[0] -= part
            first[1] -= nbytes
            self.nbytes -= nbytes
            self.taken += part
            left -= part
            if not first[0]:
                self.buffered.popleft()

    def take_back(self, received: int) -> Iterator[Run]:
        """What was sent and did not arrive, the newest first; it may not be sent again without new credit."""
        while self.sent > received and self.runs:
            run = self.runs.pop()
            back = min(run.count, self.sent - received)
            kept = run.cut(run.count - back)
            if kept.count:
                self.runs.append(kept)
            self.sent -= back
            yield run
        self.granted = self.sent
        self.taken = min(self.taken, self.sent)
        self._forget_buffered()

    def _forget_buffered(self) -> None:
        """Keep of what is buffered as much as is left of what was sent."""
        left, known, self.nbytes = self.sent - self.taken, self.buffered, 0
        self.buffered = deque()
        for count, nbytes in known:
            part = min(count, left)
            if part:
                self.buffered.append([part, nbytes * part // count])
                self.nbytes += self.buffered[-1][1]
                left -= part


@dataclass(slots=True)  # not frozen, which would take three times as long
class Taken:
    """What goes out to a reader: `count` elements of a frame from `start` on, the first one numbered `index`."""

    frame: Any
    index: int
    start: int
    count: int
