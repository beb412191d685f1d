"""Who reads a task's elements, where each one stands, and how it wants to be treated: the plain data of a window."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.wire.cache_policy import CachePolicy
from dsnb.wire.ranges import Ranges


@dataclass(slots=True, order=True)
class Span:
    """Consecutive elements sent to one reader; those below `hits_until` were asked for by another trainer before."""

    first: int
    count: int
    nbytes: int
    hits_until: int

    @property
    def end(self) -> int:
        return self.first + self.count

    def cut(self, count: int) -> Span:
        """Take the first `count` elements off this run and return them."""
        nbytes = self.nbytes * count // max(1, self.count)
        head = Span(self.first, count, nbytes, self.hits_until)
        self.first += count
        self.count -= count
        self.nbytes -= nbytes
        return head


@dataclass(slots=True)
class TrainerCursor:
    """One place in the sequence, shared by all readers of one trainer id.

    `seen` is when it last gave a sign of life, by the clock that `tidy` is given; `exempt` is set while it is treated
    as one that skips, because it holds others up and does not read; `removed` when it has left and no longer counts.
    `consumed_ranges` are the elements that it consumed. `delivered_earlier` are those that its readers had from an earlier incarnation of
    the task; they are not sent again unless a reader leaves them.
    """

    next: int
    joined_at_index: int
    cache_policy: CachePolicy
    readers: set[str] = field(default_factory=set)
    requeued: list[Span] = field(default_factory=list)
    consumed: int = 0
    hits: int = 0
    misses: int = 0
    skipped: int = 0
    spilled: int = 0
    seen: float = 0.0
    seen_consumed: int = -1
    exempt: bool = False
    removed: bool = False
    consumed_ranges: Ranges = field(default_factory=Ranges)
    delivered_earlier: Ranges = field(default_factory=Ranges)

    def count(self, part: Span) -> None:
        """Count elements as consumed."""
        hits = max(0, min(part.end, part.hits_until) - part.first)
        self.consumed += part.count
        self.consumed_ranges.add(part.first, part.end)
        self.hits += hits
        self.misses += part.count - hits

    @property
    def needs_retention(self) -> bool:
        """Whether elements that it has not consumed must be kept somewhere."""
        return self.lossless and not self.exempt and not self.removed

    @property
    def lossless(self) -> bool:
        """Whether it asked to lose nothing."""
        return self.cache_policy.on_lag in {"wait", "spill"}


@dataclass(slots=True)
class ReaderState:
    """One client's hold: counters are cumulative over its reading, `unconsumed` is what was sent and not consumed.

    `taken` elements left the client's buffer, consumed or not; `buffered` are the sizes of runs that did not, each with
    the number of its elements and their bytes, and `buffered_bytes` is their sum.
    """

    trainer_id: str
    max_bytes: int = 0
    granted: int = 0
    sent: int = 0
    taken: int = 0
    consumed: int = 0
    unconsumed: deque[Span] = field(default_factory=deque)
    buffered: deque[list[int]] = field(default_factory=deque)
    buffered_bytes: int = 0
    starved: bool = False

    @property
    def outstanding(self) -> int:
        """Elements that were sent and are on their way, or in the client's buffer."""
        return self.sent - self.taken

    def count_sent(self, span: Span) -> None:
        """Count elements as sent."""
        self.unconsumed.append(span)
        self.buffered.append([span.count, span.nbytes])
        self.sent += span.count
        self.buffered_bytes += span.nbytes

    def update_taken(self, taken: int) -> None:
        """Learn how many elements left the client's buffer in all."""
        left = min(taken, self.sent) - self.taken
        while left > 0:
            first = self.buffered[0]
            part = min(left, first[0])
            nbytes = first[1] * part // first[0]
            first[0] -= part
            first[1] -= nbytes
            self.buffered_bytes -= nbytes
            self.taken += part
            left -= part
            if not first[0]:
                self.buffered.popleft()

    def reclaim_unreceived(self, received: int) -> Iterator[Span]:
        """What was sent and did not arrive, the newest first; it may not be sent again without new credit."""
        while self.sent > received and self.unconsumed:
            span = self.unconsumed.pop()
            back = min(span.count, self.sent - received)
            kept = span.cut(span.count - back)
            if kept.count:
                self.unconsumed.append(kept)
            self.sent -= back
            yield span
        self.granted = self.sent
        self.taken = min(self.taken, self.sent)
        self._forget_buffered()

    def _forget_buffered(self) -> None:
        """Keep of what is buffered as much as is left of what was sent."""
        left, known, self.buffered_bytes = self.sent - self.taken, self.buffered, 0
        self.buffered = deque()
        for count, nbytes in known:
            part = min(count, left)
            if part:
                self.buffered.append([part, nbytes * part // count])
                self.buffered_bytes += self.buffered[-1][1]
                left -= part


@dataclass(slots=True)  # not frozen, which would take three times as long
class TakenSlice:
    """What goes out to a reader: `count` elements of a frame from `start` on, the first one numbered `index`."""

    frame: Any
    index: int
    start: int
    count: int
