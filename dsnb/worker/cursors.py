"""Cursors of the trainers and readers of a `SharedLog`: how far each one is, and its cache policy. Plain data."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import msgspec

from dsnb.errors import DeadlineExceededError
from dsnb.wire.cache_policy import CachePolicy
from dsnb.wire.ranges import Ranges


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


class TrainerCursor(msgspec.Struct):
    """The cursor of one trainer, shared by all its readers.

    Attributes:
        next: The index of the next element to send.
        joined_at_index: The log's head when the trainer attached; errors before it are not sent to the trainer.
        cache_policy: What happens when the trainer falls behind, where it starts, and its timeout.
        readers: The ids of its clients.
        awaited: The ids of its clients that joined the iteration and have yet to come here.
        requeued: Elements that readers left unconsumed or did not receive, in order; they are sent before any others.
        consumed: How many elements it consumed.
        hits: How many of these had been sent to another trainer before.
        misses: How many of these had not.
        skipped: How many elements it missed because they were evicted.
        spilled: How many elements it read from disk.
        seen: When it last made progress, by the clock of `SharedLog.expire`.
        seen_consumed: The value of `consumed` at that time.
        exempt: Whether it is treated like a trainer that skips, because it blocked the producer and timed out.
        removed: Whether it left or timed out, so that no elements are kept for it.
        consumed_ranges: The indices of the elements that it consumed or skipped: it gets none of them again.
        delivered_earlier: The indices of elements that its readers received from an earlier incarnation of the task.
            They are not sent again unless a reader leaves without having consumed them.
    """

    next: int
    joined_at_index: int
    cache_policy: CachePolicy
    readers: set[str] = msgspec.field(default_factory=set)
    awaited: set[str] = msgspec.field(default_factory=set)
    requeued: list[Span] = msgspec.field(default_factory=list)
    consumed: int = 0
    hits: int = 0
    misses: int = 0
    skipped: int = 0
    spilled: int = 0
    seen: float = 0.0
    seen_consumed: int = -1
    exempt: bool = False
    removed: bool = False
    consumed_ranges: Ranges = msgspec.field(default_factory=Ranges)
    delivered_earlier: Ranges = msgspec.field(default_factory=Ranges)

    def count(self, part: Span) -> None:
        """Count the elements of a span as consumed."""
        hits = max(0, min(part.end, part.hits_until) - part.first)
        self.consumed += part.count
        self.consumed_ranges.add(part.first, part.end)
        self.hits += hits
        self.misses += part.count - hits

    def skip(self, first: int, end: int, *had: Ranges) -> None:
        """Count elements as missed, except for those that it consumed, or has according to `had`."""
        if end <= first:
            return
        covered = Ranges(part for ranges in (self.consumed_ranges, *had) for part in ranges.within(first, end))
        for begin, stop in [*covered.within(first, end), (end, end)]:
            if begin > first:
                self.skipped += begin - first
                self.consumed_ranges.add(first, begin)
            first = stop

    def returned_for(self, client: str) -> Span | None:
        """The first requeued elements that a reader may get; None if there are none."""
        return next((span for span in self.requeued if span.owner in ("", client)), None)

    def drop_empty(self) -> None:
        """Drop requeued spans of which nothing is left."""
        self.requeued = [span for span in self.requeued if span.count]

    def disown(self, client: str) -> None:
        """Let all readers have what was requeued for one that leaves."""
        for span in self.requeued:
            span.owner = "" if span.owner == client else span.owner

    @property
    def needed_from(self) -> int:
        """The index of the first element that has yet to be sent to it; returned elements count."""
        return min(self.next, self.requeued[0].first) if self.requeued and not self.removed else self.next

    @property
    def needs_retention(self) -> bool:
        """Whether elements that it has not consumed must be kept somewhere."""
        return self.lossless and not self.exempt and not self.removed

    @property
    def lossless(self) -> bool:
        """Whether its policy is to lose no element."""
        return self.cache_policy.on_lag in {"wait", "spill"}


class ReaderState(msgspec.Struct):
    """The counters of one client, cumulative over its reading of the task.

    Attributes:
        trainer_id: Its trainer.
        max_bytes: Most bytes that it may buffer; one more span may always be sent to an empty buffer.
        granted: How many elements may be sent.
        sent: How many elements were sent.
        taken: How many elements left the client's buffer, consumed or not.
        consumed: How many elements were consumed.
        unconsumed: The elements that were sent and not consumed, in the order of sending.
        buffered: The number of elements and of bytes of each span that has not left the client's buffer entirely.
        buffered_bytes: The sum of the bytes in `buffered`.
        starved: Whether it found no element the last time, so that this is reported to the read-ahead only once.
    """

    trainer_id: str
    max_bytes: int = 0
    granted: int = 0
    sent: int = 0
    taken: int = 0
    consumed: int = 0
    unconsumed: deque[Span] = msgspec.field(default_factory=deque)
    buffered: deque[list[int]] = msgspec.field(default_factory=deque)
    buffered_bytes: int = 0
    starved: bool = False

    @property
    def outstanding(self) -> int:
        """How many elements are in flight or in the client's buffer."""
        return self.sent - self.taken

    def count_sent(self, span: Span) -> None:
        """Count the elements of a span as sent."""
        self.unconsumed.append(span)
        self.buffered.append([span.count, span.nbytes])
        self.sent += span.count
        self.buffered_bytes += span.nbytes

    def update_taken(self, taken: int) -> None:
        """Raise the number of elements that left the client's buffer."""
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
        """Take back the elements that were sent but not received, newest first, and the unused credit.

        Args:
            received: How many elements the client received.

        Yields:
            Spans of elements. The counters are only right once all of them are read.
        """
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
        """Shrink `buffered` to the elements that are still outstanding."""
        left, known, self.buffered_bytes = self.sent - self.taken, self.buffered, 0
        self.buffered = deque()
        for count, nbytes in known:
            part = min(count, left)
            if part:
                self.buffered.append([part, nbytes * part // count])
                self.buffered_bytes += self.buffered[-1][1]
                left -= part


class StartBarrier:
    """Tracks whether enough trainers have joined to start. Once complete, it stays complete.

    Attributes:
        complete: Whether elements may be sent.
    """

    def __init__(self) -> None:
        self.complete = False
        self._since: float | None = None

    def update(self, trainers: Collection[TrainerCursor], wanted: int) -> None:
        """Complete the barrier if at least `wanted` trainers have readers. Call it whenever a reader attaches."""
        self.complete |= sum(bool(trainer.readers) for trainer in trainers) >= wanted

    def timed_out(self, trainers: Collection[TrainerCursor], now: float) -> bool:
        """Whether the present trainers have waited for the shortest of their timeouts. True once, then it starts again.

        Args:
            trainers: All trainers of the task.
            now: Seconds of a monotonic clock.
        """
        timeouts = [t.cache_policy.timeout_s for t in trainers if t.readers and t.cache_policy.timeout_s]
        if self.complete or not timeouts:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= min(timeouts):
            self._since = None
            return True
        return False


def start_barrier_timeout(job: str, here: Sequence[str]) -> DeadlineExceededError:
    """The error for the present trainers when the others did not join in time.

    Args:
        job: The job's name.
        here: The names of the present trainers.
    """
    return DeadlineExceededError(
        f"not all trainers that were to start together have come to job {job!r}; here are {', '.join(map(repr, here))}",
        did="no trainer received an element",
        hint="start the others within the timeout of CrossTrainerCache(..., start_together=n, timeout=seconds), "
        "or lower n",
    )
