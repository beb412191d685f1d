"""Splits: how a source is cut into pieces that several tasks share, as plain data that needs no unpickling.

A source numbers what it can hand out separately (indices of a range, rows of an array, files) from 0 to `count - 1`; a
dispatcher hands out runs of these numbers, each once a repetition. A source that cannot be cut (a generator) has one
split: the task that gets it reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns

from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.resume_point import ResumablePositions, ResumePoint
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext, Operation


@dataclass(frozen=True, slots=True)
class SplitProvider:
    """What cuts one source into splits.

    Attributes:
        source: The source's name, for people.
        count: The number of splits; they are numbered from 0.

    Example:
        >>> SplitProvider("range(10)", 10)
        SplitProvider(source='range(10)', count=10)
    """

    source: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InvalidArgumentError(f"a split provider cannot have {self.count} splits", hint="0 or more")


@dataclass(frozen=True, kw_only=True, eq=False)
class FileSource(Operation):
    """A source that reads files, or names them: what FILE sharding divides. One split for each file."""

    files: tuple[str, ...]

    def __dsnb_files__(self) -> tuple[str, ...]:
        return self.files

    def split_provider(self) -> SplitProvider:
        """One split for each file."""
        return SplitProvider(self.name, len(self.files))


def split_providers(operation: Operation) -> tuple[SplitProvider, ...]:
    """The split providers of a tree's sources, from left to right; a source that is used twice counts twice.

    The place in the tuple is the number that `BuildContext.provider` gives the source when the tree is built.

    Raises:
        UnimplementedError: naming a source that cannot be split.
    """
    if operation.replicated:
        return ()
    provider = operation.split_provider()
    if provider is not None:
        return (provider,)
    return tuple(found for source in operation.inputs for found in split_providers(source))


class SplitCursor:
    """Which splits one source has to read in this pass: all of them, or what the feed hands out.

    Making one opens the next repetition of the source's split provider, read or not, so that the passes of all tasks
    keep the same numbers.
    """

    def __init__(self, context: BuildContext, count: int) -> None:
        everything: list[tuple[int, int]] = [(0, count)]
        feed = context.splits
        self._feed, self._provider = feed, context.provider
        self._ranges: Iterator[tuple[int, int]] = iter(everything) if feed is None else feed.open(context.provider)
        self.taken = 0
        """How many positions were taken since the source began."""
        self._repetition = feed.repetition(context.provider) if feed is not None else 0
        self._first = 0
        self._end = 0
        self._waited: tuple[int, int | None] = (0, None)
        """Time spent waiting for the feed, and since when it is waited for now."""

    def skip(self, count: int) -> int:
        """Leave positions out; how many there were."""
        left = count
        while left and (positions := self.take(left)):
            left -= len(positions)
        return count - left

    def take(self, most: int) -> range:
        """The next consecutive positions, at least one and at most `most`; an empty range at the end."""
        while self._first >= self._end:
            piece = self._next_range()
            if piece is None:
                return range(0)
            self._first, self._end = piece
        first, self._first = self._first, min(self._first + most, self._end)
        self.taken += self._first - first
        return range(first, self._first)

    def resume_point(self, skipped: int, finished_splits: int, skip: int) -> ResumePoint:
        """Where a source goes on that is done with so many positions since it began.

        Args:
            skipped: Positions that were left out when it began; only of a source that reads everything.
            finished_splits: Positions that it is done with since.
            skip: Elements to leave out behind those.
        """
        if self._feed is None:
            return ResumePoint(counter=skipped + finished_splits, skip=skip)
        return ResumePoint(
            skip=skip, provider=self._provider, repetition=self._repetition, finished_splits=finished_splits
        )

    def begin_at(self, point: ResumePoint) -> None:
        """Begin there. Splits that are handed out come without those that are done with."""
        if self._feed is None:
            self.skip(point.counter)
        elif point.repetition:
            self._ranges = self._feed.open(self._provider, point.repetition)
            self._repetition = point.repetition
        self.taken = 0

    def _next_range(self) -> tuple[int, int] | None:
        waited, began = self._waited[0], perf_counter_ns()
        self._waited = waited, began
        try:
            return next(self._ranges, None)
        finally:
            self._waited = waited + perf_counter_ns() - began, None

    @property
    def wait_ns(self) -> int:
        """Time spent waiting for the feed, now too."""
        waited, since = self._waited
        return waited if since is None else waited + perf_counter_ns() - since


class SourceStage(Stage):
    """A source at work, which reads the positions that it is given.

    Args:
        name: The operation's.
        context: Tells where positions come from.
        count: How many there are in all.
    """

    one_element_per_split = False
    """Whether each position is one element."""

    def __init__(self, name: str, context: BuildContext, count: int) -> None:
        super().__init__(name)
        self._splits = SplitCursor(context, count)
        self._resumable_positions = None if self.one_element_per_split else ResumablePositions()

    def skip(self, count: int) -> int:
        """Counted, where each position is one element."""
        return self._splits.skip(count) if self.one_element_per_split else super().skip(count)

    def resume_point(self, count: int) -> ResumePoint:
        """Behind the positions that it is done with, and the elements of the next one that it gave."""
        begun = self._start_point
        if self.one_element_per_split:
            return self._splits.resume_point(begun.counter, count, 0)
        position = self._resumable_positions.last_before(count) if self._resumable_positions is not None else None
        if position is None:
            return self._splits.resume_point(begun.counter, 0, begun.skip + count)
        given, _, finished_splits = position
        return self._splits.resume_point(begun.counter, finished_splits, count - given)

    def begin_at(self, point: ResumePoint) -> None:
        """Begin there."""
        self._splits.begin_at(point)
        super().begin_at(point)

    def note_splits_finished(self, undelivered: int = 0) -> None:
        """Note that all elements of the positions that were taken are out.

        Args:
            undelivered: How many of them are about to be given by the pull that goes on.
        """
        self.note_resumable_position(self._splits.taken, undelivered)
