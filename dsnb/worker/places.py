"""Who reads a task's elements, where each one stands, and how it wants to be treated: the plain data of a window."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.wire.manner import Manner


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
    """One place in the sequence, shared by all readers of one trainer id.

    `seen` is when it last gave a sign of life, by the clock that `tidy` is given; `waived` is set while it is treated
    as one that skips, because it holds others up and does not read; `gone` when it has left and no longer counts.
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

    def count(self, part: Run) -> None:
        """Count elements as consumed."""
        hits = max(0, min(part.end, part.hits_until) - part.first)
        self.consumed += part.count
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
    """One client's hold: counters are cumulative over its reading, `runs` is what was sent and not consumed."""

    trainer: str
    max_bytes: int = 0
    granted: int = 0
    sent: int = 0
    consumed: int = 0
    runs: deque[Run] = field(default_factory=deque)
    nbytes: int = 0
    starved: bool = False

    def take_back(self, received: int) -> Iterator[Run]:
        """What was sent and did not arrive, the newest first; it may not be sent again without new credit."""
        while self.sent > received and self.runs:
            run = self.runs.pop()
            back = min(run.count, self.sent - received)
            kept = run.cut(run.count - back)
            if kept.count:
                self.runs.append(kept)
            self.sent -= back
            self.nbytes -= run.nbytes
            yield run
        self.granted = self.sent


@dataclass(slots=True)  # not frozen, which would take three times as long
class Taken:
    """What goes out to a reader: `count` elements of a frame from `start` on, the first one numbered `index`."""

    frame: Any
    index: int
    start: int
    count: int
