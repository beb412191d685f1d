"""Splits: pieces of a source that several tasks share, described as plain data that needs no unpickling.

A source numbers its separable parts (indices of a range, rows of an array, files) from 0 to `count - 1`. A dispatcher
assigns ranges of these numbers to tasks, each number once for each repetition. A source that cannot be cut (a
generator) has one split: the task that gets it reads everything.

If `batch(n)` follows such a source, a split is n parts instead of one: part `n * i` to `n * (i + 1) - 1` for split i.
Then each batch is made of one split, only the last one may be smaller, and all tasks together make as many batches as
one would. Operations in between must make one element of each (`Operation.inputs_per_element`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.element_numbers import ElementNumbers, Number
from dsnb.pipeline.engine.resume_point import ResumablePositions, ResumePoint
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.stopwatch import Stopwatch


class SplitProvider(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """How one source is cut into splits.

    Attributes:
        source: The source's name, for messages.
        count: The number of splits; they are numbered from 0.
        divisible: Whether a split is `size` elements of the source, the last one maybe fewer, and any size would do.
        size: How many.

    Example:
        >>> SplitProvider("range(10)", 10)
        SplitProvider(source='range(10)', count=10)
        >>> SplitProvider("range(10)", 10, divisible=True).with_size(4)
        SplitProvider(source='range(10)', count=3, divisible=True, size=4)
    """

    source: str
    count: int
    divisible: bool = False
    size: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InvalidArgumentError(f"a split provider cannot have {self.count} splits", hint="0 or more")

    def with_size(self, size: int) -> SplitProvider:
        """Return the provider that joins `size` splits to one, if the source is divisible; else this one."""
        if not self.divisible or size == 1:
            return self
        return replace(self, count=-(-self.count // size), size=self.size * size)


class FileSource(Operation, frozen=True, kw_only=True):
    """A source that reads files or lists their names, which FILE sharding divides. One split for each file."""

    files: tuple[str, ...]

    def __dsnb_files__(self) -> tuple[str, ...]:
        return self.files

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, len(self.files))

    def shard_of_files(self, count: int, index: int) -> FileSource:
        """Return the source that reads each `count`-th file, from file `index` on."""
        return replace(self, files=self.files[index::count])


def split_providers(operation: Operation, size: int = 1) -> tuple[SplitProvider, ...]:
    """Return the split providers of a tree's sources, from left to right; a source used twice counts twice.

    The index in the tuple is the number that `BuildContext.provider` gives the source when the tree is built.

    Args:
        operation: The tree.
        size: How many elements of it the operation after it needs for one of its own.

    Raises:
        UnimplementedError: a source cannot be split; the message names it.
    """
    if operation.replicated:
        return ()
    provider = operation.split_provider()
    if provider is not None:
        return (provider.with_size(size),)
    size = size * operation.inputs_per_element if len(operation.inputs) == 1 else 1
    return tuple(found for source in operation.inputs for found in split_providers(source, size or 1))


def shares_exactly(operation: Operation) -> bool:
    """Whether tasks that share the splits of a tree make together as many elements as one task alone would.

    Example:
        >>> from dsnb.pipeline.dataset import Dataset
        >>> shares_exactly(Dataset.range(10).batch(4).operation), shares_exactly(Dataset.range(10).take(4).operation)
        (True, False)
    """
    if not operation.inputs:
        return True
    if operation.repeats_input or operation.inputs_per_element == 1:
        return shares_exactly(operation.inputs[0])
    return operation.inputs_per_element > 1 and _cuts_at_multiples(operation.inputs[0])


def _cuts_at_multiples(operation: Operation) -> bool:
    """Whether splits of the only source can be cut at any multiple of elements of this operation."""
    if not operation.inputs:
        provider = operation.split_provider()
        return provider is not None and provider.divisible
    return operation.inputs_per_element > 0 and _cuts_at_multiples(operation.inputs[0])


def keeps_split_order(operation: Operation) -> bool:
    """Whether a tree's elements come in the order of the splits that they are made of, if it runs deterministically.

    Example:
        >>> from dsnb.pipeline.dataset import Dataset
        >>> numbers = Dataset.range(10)
        >>> keeps_split_order(numbers.batch(4).operation), keeps_split_order(numbers.shuffle(4).operation)
        (True, False)
    """
    kept = not operation.inputs or (operation.inputs_per_element > 0 and not operation.rearranges)
    return kept and all(map(keeps_split_order, operation.inputs))


class SplitCursor:
    """The splits that one source must read in this iteration: all of them, or those that the feed returns.

    Creating a cursor opens the next repetition of the source's split provider, whether it is read or not, so that all
    tasks count the same repetitions.
    """

    def __init__(self, context: BuildContext, count: int) -> None:
        feed = context.splits
        self._feed, self._provider = feed, context.provider
        self._size, self._count = context.split_size, count
        self._smaller_split: tuple[int, int] | None = None
        """The last split, if it has fewer positions: how many were taken up to its end, and how many it has."""
        self._ranges: Iterator[tuple[int, int]] = iter(()) if feed is None else feed.open(context.provider)
        self.taken = 0
        """How many positions were taken since the source began."""
        self.on_take: Callable[[int, int], None] | None = None
        """Called with the positions that were taken before, and the next one."""
        self._repetition = feed.repetition(context.provider) if feed is not None else 0
        self._first = 0
        self._end = count if feed is None else 0
        self.last = -1
        """The position that was taken last."""
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
        first, end = self._first, min(self._first + most, self._end)
        if self.on_take is not None:
            self.on_take(self.taken, first)
        # All at once, and last: an interrupt before this has taken nothing.
        self._first, self.taken, self.last = end, self.taken + end - first, end - 1
        return range(first, end)

    def resume_point(self, skipped: int, finished: int, skip: int) -> ResumePoint:
        """Return where a source continues after finishing some of its positions.

        Args:
            skipped: Positions that were skipped when it began; only for a source that reads everything.
            finished: Positions that it finished since then.
            skip: Elements to drop after those.
        """
        if self._feed is None:
            return ResumePoint(counter=skipped + finished, skip=skip)
        finished_splits, rest = self._splits_in(finished)
        skip += rest
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
        self.taken, self._smaller_split = 0, None

    def _splits_in(self, positions: int) -> tuple[int, int]:
        """Return how many splits the first `positions` positions finish, and how many positions are left over."""
        end, length = self._smaller_split or (positions + 1, 0)
        splits, rest = divmod(positions - length if positions >= end else positions, self._size)
        return splits + (positions >= end), rest

    def _next_range(self) -> tuple[int, int] | None:
        if self._feed is None:
            return next(self._ranges, None)
        self._waits.start()
        try:
            splits = next(self._ranges, None)
        finally:
            self._waits.stop()
        if splits is None:
            return None
        first, end = splits[0] * self._size, min(splits[1] * self._size, self._count)
        if (end - first) % self._size:
            self._smaller_split = self.taken + end - first, (end - first) % self._size
        return first, end

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

    takes_positions_when_needed = False
    """Whether a position is taken no earlier than its first element is produced, after `note_splits_finished`."""

    def __init__(self, name: str, context: BuildContext, count: int) -> None:
        super().__init__(name)
        self._splits = SplitCursor(context, count)
        self._resumable_positions = None if self.one_element_per_split else ResumablePositions()
        self._element_numbers: ElementNumbers | None = None
        self._number_base = 0
        """How many elements came before those that are counted since this stage began."""
        self._next_position_begins = 0
        """With which of its elements the position that is taken next begins."""

    def skip(self, count: int) -> int:
        """Skip positions without reading them, if each position is one element."""
        return self._splits.skip(count) if self.one_element_per_split else super().skip(count)

    def resume_point(self, count: int) -> ResumePoint:
        """After the finished positions, and the elements of the next position that were delivered."""
        begun = self._start_point
        if self.one_element_per_split:
            # A fresh source skips the elements of the split in progress one by one; they count as taken.
            return self._splits.resume_point(begun.counter, begun.skip + count, 0)
        position = self._resumable_positions.last_before(count) if self._resumable_positions is not None else None
        if position is None:
            return self._splits.resume_point(begun.counter, 0, begun.skip + count)
        given, _, finished_splits = position
        return self._splits.resume_point(begun.counter, finished_splits, count - given)

    def begin_at(self, point: ResumePoint) -> None:
        self._splits.begin_at(point)
        if point.skip:
            # The base's `begin_at` drops these elements and counts from 0 afterwards.
            self._number_base = point.skip
        super().begin_at(point)

    @property
    def can_number(self) -> bool:
        """Whether it knows with which of its elements a position begins."""
        return self.one_element_per_split or self.takes_positions_when_needed

    def start_numbering(self) -> None:
        """Note from now on which elements begin a position; only before the first pull."""
        if self._element_numbers is None:
            self._element_numbers = ElementNumbers(one_element_per_position=self.one_element_per_split)
            self._splits.on_take = self._note_number

    def numbers_of(self, element: int, count: int) -> list[Number]:
        """Return the numbers of consecutive elements, counted since this stage began."""
        assert self._element_numbers is not None, "numbering was not started"
        return self._element_numbers.of(self._number_base + element, count)

    def _note_number(self, taken: int, position: int) -> None:
        assert self._element_numbers is not None
        self._element_numbers.note(taken if self.one_element_per_split else self._next_position_begins, position)

    def note_splits_finished(self, undelivered: int = 0) -> None:
        """Record that all elements of the taken positions are delivered.

        Args:
            undelivered: How many of them the running pull is about to return.
        """
        self.note_resumable_position(self._splits.taken, undelivered)
        self._next_position_begins = self._number_base + self.delivered + undelivered
