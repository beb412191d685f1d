"""What every operation and source is: a frozen description that can tell its spec, its length, and build its stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dsnb.dataclass import dataclass
from dsnb.errors import UnimplementedError

if TYPE_CHECKING:
    from dsnb.cache.opened_files import OpenedFiles
    from dsnb.elements.allocation import Allocator
    from dsnb.pipeline.engine.bookmarks import SourcePositions
    from dsnb.pipeline.engine.stage import Stage
    from dsnb.pipeline.position import IterationCounter
    from dsnb.pipeline.splits import SplitProvider

INFINITE_CARDINALITY = -1
"""`Dataset.cardinality()` of a dataset that never ends."""
UNKNOWN_CARDINALITY = -2
"""`Dataset.cardinality()` of a dataset whose length only running it could tell."""


class SplitFeed(Protocol):
    """Where the sources of a DYNAMIC task get their splits from (the dispatcher, by way of the worker)."""

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        """Begin the next repetition of one split provider, or a certain one.

        Yields:
            Runs of consecutive splits as (first, end), each at least one long, until there are no more.
        """
        ...

    def repetition(self, provider: int) -> int:
        """The repetition that was begun last."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What stages need to know of the run that they belong to.

    Attributes:
        entropy: The root of all unseeded randomness of this run.
        iteration_path: Which pass this is: the iteration, then the number of each `repeat` around. Shuffles draw anew for each.
        splits: Where sources get their splits; None to read everything.
        provider: The number of the next split provider, counted over the sources of the tree from left to right.
        low_latency: Whether somebody waits for each element, as a worker's readers do: what exists is handed on within
            milliseconds, though user code holds back what comes next. That takes a thread for each function.
        deterministic: What holds for operations that were not told whether order matters.
        shared_order: Whether other tasks have to come to the same order, since each cuts its shard out of it. They have one
            entropy, and whoever draws one of his own takes a fixed one instead.
        source_positions: Where sources tell what a reading position has to know of them; None where nobody asks.
        nested: Whether this is inside of a dataset that a function made.
        endless: Whether the passes go on for ever, so that one which is over already may be left out.
        allocate: Where the elements are laid out that leave the pipeline, if they are laid out anew; None for anywhere, and
            for an operation whose elements others change or keep.
        opened_files: Where sources note the files that they open; None where nobody asks.
        copied_later: Whether the elements are copied before user code sees them. Then a source or a recording may hand
            out views of what it keeps; else it hands out copies.
    """

    entropy: int
    iteration_path: tuple[int, ...] = (0,)
    splits: SplitFeed | None = None
    provider: int = 0
    low_latency: bool = False
    deterministic: bool = True
    shared_order: bool = False
    source_positions: SourcePositions | None = None
    nested: bool = False
    endless: bool = False
    allocate: Allocator | None = None
    opened_files: OpenedFiles | None = None
    copied_later: bool = False

    def seed(self, seed: int | None) -> list[int]:
        """What to seed a generator of this pass with."""
        return [self.entropy if seed is None else seed, *self.iteration_path]

    def in_iteration(self, iteration: int, *, endless: bool = False) -> BuildContext:
        """The context of one more pass over the same inputs; `endless` if there is always another one."""
        return replace(self, iteration_path=(*self.iteration_path, iteration), endless=endless)

    def inner(self) -> BuildContext:
        """The context of a dataset that a function made: its sources are read whole, never split.

        Nor is it worth threads: there may be one for each element.
        """
        return replace(self, splits=None, low_latency=False, nested=True, allocate=None, copied_later=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One node of a pipeline's tree. Subclasses are frozen dataclasses whose fields say what to do.

    Operations are compared by identity: their fields may hold arrays, which have no single answer to `==`.
    """

    inputs: tuple[Operation, ...] = field(default=())
    replicated: ClassVar[bool] = False
    """Whether each task of a DYNAMIC job reads all that is below by itself, instead of sharing its splits."""

    has_source_position: ClassVar[bool] = False
    """Whether its stage keeps a bookmark, so that a reading position tells what does not follow from the pipeline."""

    passes_through: ClassVar[bool] = False
    """Whether its input's elements leave it as they are and soon, and no user code sees them meanwhile."""

    copies: ClassVar[bool] = False
    """Whether all that leaves it are copies of its input's elements."""

    rearranges: ClassVar[bool] = False
    """Whether its input's elements leave it as they are, alone or in tuples, and no user code sees them meanwhile."""

    @property
    def name(self) -> str:
        """What this operation is called in reports and errors, as in `map(decode)`."""
        return type(self).__name__.lower()

    @property
    def element_spec(self) -> Any:
        """Structure of `TensorSpec`s, or None where only running the pipeline could tell."""
        return None

    @property
    def cardinality(self) -> int:
        """Number of elements, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`."""
        return UNKNOWN_CARDINALITY

    @property
    def elementwise(self) -> bool:
        """Whether each element is made of the input's at the same place alone: a shard may then be taken before it."""
        return False

    @property
    def split_local(self) -> bool:
        """Whether each element is made of one split's alone, whatever the others are; sources apart."""
        return self.elementwise

    def repeatable_under(self, *, deterministic: bool) -> bool:
        """Whether this operation gives the same elements again from the same input and the same entropy.

        Args:
            deterministic: What holds for operations that were not told whether order matters.
        """
        del deterministic
        return True

    @property
    def iteration_counter(self) -> IterationCounter | None:
        """Counts the passes of a source that several datasets may read; None where they are counted elsewhere."""
        return None

    @property
    def draws_without_seed(self) -> bool:
        """Whether it draws at random, and has no seed of the user's to draw by."""
        return False

    @property
    def remote_pipeline(self) -> Operation | None:
        """The pipeline that a service runs to make this source's elements, where it is known."""
        return None

    @property
    def position_identity(self) -> Any:
        """What a reading position knows this operation by, beside its name; None for all its fields."""
        return None

    def split_provider(self) -> SplitProvider | None:
        """How a dispatcher cuts this source into splits; None for an operation that is no source.

        Raises:
            UnimplementedError: for a source that cannot be split.
        """
        if self.inputs:
            return None
        raise UnimplementedError(f"the source {self.name} cannot be cut into splits")

    def build(self, context: BuildContext) -> Stage:
        """The stage that does this operation, its inputs built as well."""
        raise NotImplementedError

    def build_inputs(self, context: BuildContext) -> Sequence[Stage]:
        """The stages of the inputs, each with the numbers of its own split providers."""
        stages: list[Stage] = []
        copied_later = self.copies or (context.copied_later and (self.passes_through or self.rearranges))
        if copied_later != context.copied_later or (context.allocate is not None and not self.passes_through):
            context = replace(
                context, copied_later=copied_later, allocate=context.allocate if self.passes_through else None
            )
        try:
            for operation in self.inputs:
                stages.append(operation.build(context.inner() if operation.replicated else context))
                context = replace(context, provider=context.provider + count_sources(operation))
        except BaseException:
            for stage in stages:  # they may read from a service already
                stage.close()
            raise
        return stages


class SameSpec(Operation):
    """An operation whose elements are its input's: some of them, all of them, or all in another order."""

    @property
    def element_spec(self) -> Any:
        """The input's."""
        return self.inputs[0].element_spec


class Unchanged(SameSpec):
    """An operation whose elements are exactly its input's; it says something about how they come."""

    @property
    def cardinality(self) -> int:
        """The input's."""
        return self.inputs[0].cardinality

    @property
    def elementwise(self) -> bool:
        """It is."""
        return True


def count_sources(operation: Operation) -> int:
    """The number of sources in a tree that share splits; a source that is used twice counts twice."""
    if operation.replicated:
        return 0
    return sum(map(count_sources, operation.inputs)) if operation.inputs else 1


def walk(operation: Operation) -> Iterator[Operation]:
    """A tree's operations, inputs first, from left to right."""
    for source in operation.inputs:
        yield from walk(source)
    yield operation
