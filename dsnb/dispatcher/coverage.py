"""What is known of the delivery of an iteration: tables of gone tasks and of readers. Only records change them.

Theory of operation. Elements of a task are numbered, and clients and workers report which numbers were consumed. For a
task that exists, `Task.consumed_positions` has what is recorded; when the task is dropped, `TaskCoverage` keeps it,
because clients may still report what they consumed. Independently of that, each reader counts what it consumed. The
union of the numbers says what is missing; the sum of the counts, minus that, says what came twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from dsnb.dispatcher.split_ranges import SplitRanges
from dsnb.elements.content_digest import sum_of_digests
from dsnb.wire.field_groups import ReaderCount, shared
from dsnb.wire.messages import ClientReport, IndexRange, SplitRange, TaskHolding, TrainerPosition
from dsnb.wire.ranges import Ranges

MAX_READERS: Final = 1000
"""How many readers of an iteration are counted one by one; those that left first are then added up."""
OTHERS: Final = "others"
"""The name under which they are added up."""


class ReaderTally(msgspec.Struct, forbid_unknown_fields=True):
    """How much a reader consumed, by its own count; None if it has not left, or died without saying it."""

    trainer_id: str
    count: ReaderCount | None = None
    state: str = "reading"


class TaskCoverage(msgspec.Struct, forbid_unknown_fields=True):
    """What was delivered of a task, all clients together.

    Attributes:
        worker: The name of its last worker.
        sequence_incarnation: The incarnation in which its element numbers began at 0.
        expected: How many elements it would have made; -1 if unknown.
        consumed: The numbers of the elements that were consumed.
        earlier_elements: How many elements were consumed of its earlier sequences.
        restarts: How many earlier sequences there were.
        lost: Whether it was given up.
        splits: If it was, the splits that it was given, in order.
        unconsumed_splits: By provider, how many of the last of these its worker had not reported as consumed.
        skipped: How many elements of `splits` come before the first one of its sequence.
        shard: Its shard; -1 in the modes without shards.
    """

    worker: str
    sequence_incarnation: int
    expected: int = -1
    consumed: Ranges = msgspec.field(default_factory=Ranges)
    earlier_elements: int = 0
    restarts: int = 0
    lost: bool = False
    splits: SplitRanges = msgspec.field(default_factory=SplitRanges)
    unconsumed_splits: dict[int, int] = msgspec.field(default_factory=dict)
    skipped: int = 0
    shard: int = -1

    def add_holding(self, holding: TaskHolding) -> None:
        """Add what a client consumed; what it held when the task was dropped, and did not consume, is missing."""
        self.add_consumed(holding)
        if holding.incarnation >= self.sequence_incarnation:
            for first, end in pairs(holding.held):
                self.consumed.remove(first, end)

    def add_consumed(self, holding: TaskHolding) -> None:
        """Add what a client consumed."""
        if holding.incarnation >= self.sequence_incarnation:
            self.consumed.update(pairs(holding.consumed))

    def missing(self) -> Ranges:
        """The numbers of the elements that were not delivered, if `expected` is known."""
        numbers = Ranges([(0, self.expected)])
        for first, end in self.consumed:
            numbers.remove(first, end)
        return numbers

    def missing_splits(self) -> list[SplitRange]:
        """The splits of the missing elements, if the elements come in the order of the splits, one from each."""
        missing, found, at = self.missing(), list[SplitRange](), -self.skipped
        for run in self.splits.ranges():
            following = at + run.end - run.first
            found += (
                replace(run, first=run.end - following + first, end=run.end - following + end)
                for first, end in missing.within(at, following)
            )
            at = following
        return found

    def last_splits(self) -> list[SplitRange]:
        """The splits that were not consumed completely, by the worker's last report: its last ones."""
        left, found = dict(self.unconsumed_splits), list[SplitRange]()
        for run in reversed(self.splits.ranges()):
            first = max(run.first, run.end - left.get(run.provider, 0))
            if first < run.end:
                left[run.provider] -= run.end - first
                found.append(replace(run, first=first))
        return found[::-1]


def pairs(parts: Iterable[IndexRange]) -> Iterable[tuple[int, int]]:
    """Index ranges as (first, end)."""
    return ((part.first, part.end) for part in parts)


def consumed_of(positions: Iterable[TrainerPosition]) -> Ranges:
    """The numbers of all elements that were consumed by these positions."""
    ranges = Ranges()
    for position in positions:
        ranges.add(0, position.offset)
        ranges.update(pairs(position.consumed))
    return ranges


def add_reader(readers: dict[str, ReaderTally], client_id: str, trainer_id: str, previous: str) -> None:
    """Count a client that joined; one that was counted as lost and joined again goes on with its own count."""
    tally = readers.pop(previous, None) if previous else None
    readers[client_id] = ReaderTally(trainer_id if tally is None else tally.trainer_id)
    gone = [name for name, one in readers.items() if one.state != "reading" and name != OTHERS]
    if len(readers) > MAX_READERS and gone:
        first, others = readers.pop(gone[0]), readers.setdefault(OTHERS, ReaderTally("", ReaderCount(), "left"))
        others.count = sum_of_counts([others.count, first.count])
        others.state = "left" if others.count is not None else "died"


def reader_left(readers: dict[str, ReaderTally], client_id: str, count: ReaderCount | None) -> None:
    """Note that a client is gone, and how much it consumed; None if it did not say so."""
    tally = readers.get(client_id)
    if tally is not None:
        tally.count, tally.state = count, "died" if count is None else "left"


def count_of(report: ClientReport) -> ReaderCount:
    """What a client consumed, by its report."""
    return ReaderCount(**shared(ReaderCount, report))


def sum_of_counts(counts: Iterable[ReaderCount | None]) -> ReaderCount | None:
    """What clients consumed together; None if that of one is unknown. Without the digest of each there is none of all.

    Example:
        >>> sum_of_counts([ReaderCount(elements=2), None, ReaderCount(elements=3)])
        >>> sum_of_counts([ReaderCount(elements=2), ReaderCount(elements=3)])
        ReaderCount(elements=5, digest=b'')
    """
    known = list(counts)
    total = [count for count in known if count is not None]
    if len(total) < len(known):
        return None
    digests = [count.digest for count in total if count.elements]
    digest = sum_of_digests(digests) if digests and all(digests) else b""
    return ReaderCount(elements=sum(count.elements for count in total), digest=digest)
