"""Splits: pieces of a source that several tasks share, described as plain data that needs no unpickling.

A source numbers its separable parts (indices of a range, rows of an array, files) from 0 to `count - 1`. A dispatcher
assigns ranges of these numbers to tasks, each number once for each repetition. A source that cannot be cut (a
generator) has one split: the task that gets it reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.resume_point import ResumablePositions, ResumePoint
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.stopwatch import Stopwatch


class SplitProvider(msgspec.Struct, frozen=True):
    """How one source is cut into splits.

    Attributes:
        source: The source's name, for messages.
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


class FileSource(Operation, frozen=True, kw_only=True):
    """A source that reads files or lists their names, which FILE sharding divides. One split for each file."""

    files: tuple[str, ...]

    def __dsnb_files__(self) -> tuple[str, ...]:
        return self.files

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, len(self.files))


def split_providers(operation: Operation) -> tuple[SplitProvider, ...]:
    """Return the split providers of a tree's sources, from left to right; a source used twice counts twice.

    The index in the tuple is the number that `BuildContext.provider` gives the source when the tree is built.

    Raises:
        UnimplementedError: a source cannot be split; the message names it.
    """
    if operation.replicated:
        return ()
    provider = operation.split_provider()
    if provider is not None:
        return (provider,)
    return tuple(found for source in operation.inputs for found in split_providers(source))


class SplitCursor:
    """The splits that one source must read in this iteration: all of them, or those that the feed returns.

    Creating a cursor opens the next repetition of the source's split provider, whether it is read or not, so that all
    tasks count the same repetitions.
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
        self._waits = Stopwatch()
        """Measures waiting for the feed."""

    def skip(self, count: int) -> int:
        """Skip positions; return how many there were."""
        left = count
        while left and (positions := self.take(left)):
            left -= len(positions)
        return count - left

    def take(self, most: int) -> range:
        """Return the next consecutive positions, at least one and at most `most`; an empty range at the end."""
        while self._first >= self._end:
            piece = self._next_range()
            if piece is None:
                return range(0)
            self._first, self._end = piece
        first, self._first = self._first, min(self._first + most, self._end)
        self.taken += self._first - first
        return range(first, self._first)

    def resume_point(self, skipped: int, finished_splits: int, skip: int) -> ResumePoint:
        """Return where a source continues after finishing some of its positions.

        Args:
            skipped: Positions that were skipped when it began; only for a source that reads everything.
            finished_splits: Positions that it finished since then.
            skip: Elements to drop after those.
        """
        if self._feed is None:
            return ResumePoint(counter=skipped + finished_splits, skip=skip)
        return ResumePoint(
            skip=skip, provider=self._provider, repetition=self._repetition, finished_splits=finished_splits
        )

    def begin_at(self, point: ResumePoint) -> None:
        """Begin at a point. A feed does not return finished splits, so only a cursor without one must skip them."""
        if self._feed is None:
            self.skip(point.counter)
        elif point.repetition:
            self._ranges = self._feed.open(self._provider, point.repetition)
            self._repetition = point.repetition
        self.taken = 0

    def _next_range(self) -> tuple[int, int] | None:
        if self._feed is None:
            return next(self._ranges, None)
        self._waits.start()
        try:
            return next(self._ranges, None)
        finally:
            self._waits.stop()

    @property
    def wait_ns(self) -> int:
        """Time spent waiting for the feed, including the current wait."""
        return self._waits.ns


class SourceStage(Stage):
    """The stage of a source: reads the positions that its cursor returns.

    Args:
        name: The operation's name.
        context: Supplies the positions.
        count: The number of positions in total.
    """

    one_element_per_split = False
    """Whether each position is exactly one element."""

    def __init__(self, name: str, context: BuildContext, count: int) -> None:
        super().__init__(name)
        self._splits = SplitCursor(context, count)
        self._resumable_positions = None if self.one_element_per_split else ResumablePositions()

    def skip(self, count: int) -> int:
        """Skip positions without reading them, if each position is one element."""
        return self._splits.skip(count) if self.one_element_per_split else super().skip(count)

    def resume_point(self, count: int) -> ResumePoint:
        """After the finished positions, and the elements of the next position that were delivered."""
        begun = self._start_point
        if self.one_element_per_split:
            return self._splits.resume_point(begun.counter, count, 0)
        position = self._resumable_positions.last_before(count) if self._resumable_positions is not None else None
        if position is None:
            return self._splits.resume_point(begun.counter, 0, begun.skip + count)
        given, _, finished_splits = position
        return self._splits.resume_point(begun.counter, finished_splits, count - given)

    def begin_at(self, point: ResumePoint) -> None:
        self._splits.begin_at(point)
        super().begin_at(point)

    def note_splits_finished(self, undelivered: int = 0) -> None:
        """Record that all elements of the taken positions are delivered.

        Args:
            undelivered: How many of them the running pull is about to return.
        """
        self.note_resumable_position(self._splits.taken, undelivered)
