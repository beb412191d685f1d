"""The base of operations and sources: frozen descriptions that know their spec and length and can build their stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from dsnb.code.fingerprint.parts import Decomposition, encode_parts, type_name
from dsnb.errors import UnimplementedError
from dsnb.processes import usable_cpus

if TYPE_CHECKING:
    from dsnb.cache.opened_files import OpenedFiles
    from dsnb.elements.allocation import Allocator
    from dsnb.pipeline.engine.source_positions import SourcePositions
    from dsnb.pipeline.engine.stage import Stage
    from dsnb.pipeline.position import IterationCounter
    from dsnb.pipeline.splits import SplitProvider

INFINITE_CARDINALITY = -1
"""`Dataset.cardinality()` of a dataset that never ends."""
UNKNOWN_CARDINALITY = -2
"""`Dataset.cardinality()` of a dataset whose length only running it would show."""


class SplitFeed(Protocol):
    """Gives the sources of a DYNAMIC task their splits; on a worker, they come from the dispatcher."""

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        """Begin the next repetition of a split provider, or the given one.

        Args:
            provider: The number of the split provider.
            repetition: The repetition to read; None for the next one.

        Yields:
            Ranges of consecutive splits as (first, end), each with at least one split, until there are no more.
        """
        ...

    def repetition(self, provider: int) -> int:
        """Return the repetition that was begun last."""
        ...

    @property
    def refused(self) -> bool:
        """Whether this task gets no more splits although there are some: the pipeline ends."""
        ...


class BuildContext(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a run that its stages need.

    Attributes:
        entropy: The root of all unseeded randomness of this run.
        iteration_path: The iteration, followed by the count of each enclosing `repeat`. Each value is another
            order of shuffles.
        splits: The splits for sources to read; None to read everything.
        provider: The number of the next split provider, counted over the sources of the tree from left to right.
        low_latency: Whether results are delivered within milliseconds although user code delays those after them,
            because clients of a worker wait for each element. This needs a thread for each function.
        deterministic: The default for operations without a setting of their own.
        shared_order: Whether other tasks must produce the same order, since each takes its shard of it. They share one
            entropy, and an operation that would draw its own uses a fixed one instead.
        source_positions: Collects the positions of sources for a reading position; None if none is needed.
        split_sizes: The `size` of each split provider; 1 for one that is missing.
        nested: Whether this is inside a dataset that a function made.
        endless: Whether the iterations never end, so that one which is already over may be left out.
        allocate: Allocates memory for elements that leave the pipeline, if they are copied anyway. None for any memory,
            and for operations whose elements are changed or kept by others.
        opened_files: Records the files that sources open; None if they need not be recorded.
        copied_later: Whether elements are copied before user code sees them. Then a source or a recording may return
            views of its memory; otherwise it returns copies.
        receipts: Whether readers of a service keep a digest of what they consumed.
        cpus: Returns how many processors this pipeline may keep busy; it need not be a whole number.
    """

    entropy: int
    iteration_path: tuple[int, ...] = (0,)
    splits: SplitFeed | None = None
    provider: int = 0
    low_latency: bool = False
    deterministic: bool = True
    shared_order: bool = False
    source_positions: SourcePositions | None = None
    split_sizes: tuple[int, ...] = ()
    nested: bool = False
    endless: bool = False
    allocate: Allocator | None = None
    opened_files: OpenedFiles | None = None
    copied_later: bool = False
    receipts: bool = False
    cpus: Callable[[], float] = usable_cpus

    @property
    def split_size(self) -> int:
        """How many elements of the next source make one split; 1 if it reads everything."""
        sized = self.splits is not None and self.provider < len(self.split_sizes)
        return self.split_sizes[self.provider] if sized else 1

    def seed(self, seed: int | None) -> list[int]:
        """Return the seed for a generator of this iteration."""
        return [self.entropy if seed is None else seed, *self.iteration_path]

    def in_iteration(self, iteration: int, *, endless: bool = False) -> BuildContext:
        """Return the context of one more iteration of the same inputs; `endless` if there is always another one."""
        return replace(self, iteration_path=(*self.iteration_path, iteration), endless=endless)

    def inner(self) -> BuildContext:
        """Return the context of a dataset that a function made: its sources are read whole, never split.

        It uses no extra threads either: there may be one such dataset for each element.
        """
        return replace(self, splits=None, low_latency=False, nested=True, allocate=None, copied_later=False)


class Operation(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """One node of a pipeline's tree. Subclasses are frozen structs whose fields are the parameters.

    Operations are compared by identity: their fields may be arrays, for which `==` is not a single bool.
    """

    inputs: tuple[Operation, ...] = ()
    replicated: ClassVar[bool] = False
    """Whether each task of a DYNAMIC job reads everything under this operation, instead of sharing its splits."""

    has_source_position: ClassVar[bool] = False
    """Whether its stage has a source position, because its elements do not follow from the pipeline alone."""

    passes_through: ClassVar[bool] = False
    """Whether elements pass unchanged and without delay, and no user code sees them meanwhile."""

    copies: ClassVar[bool] = False
    """Whether all its elements are copies of its input's elements."""

    runs_on_workers: ClassVar[bool] = True
    """Whether a service may run it. False if its result is a message to the user, which belongs behind `distribute`."""

    repeats_input: ClassVar[bool] = False
    """Whether it is its whole input, any number of times."""

    rearranges: ClassVar[bool] = False
    """Whether elements pass unchanged, alone or in tuples, and no user code sees them meanwhile."""

    def __repr__(self) -> str:  # fields may hold tokens and passwords
        return self.name

    def __rich_repr__(self) -> list[tuple[str, Any]]:  # the library rich would show all fields
        return []

    def __dsnb_decompose__(self) -> Decomposition:
        """Decompose it for a fingerprint: into its class and fields, with a direct edge to each of its inputs."""
        inputs = [(f"input {number}", source) for number, source in enumerate(self.inputs)]
        fields = [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "inputs"]
        try:
            detail = str(self.name)
        except Exception:  # noqa: BLE001 - the name is for display and not part of the fingerprint
            detail = type_name(type(self))
        edges = (("class", type(self)), *inputs, *fields)
        return Decomposition("operation", encode_parts(len(inputs)), edges, detail)

    @property
    def name(self) -> str:
        """The name of this operation in reports and errors, as in `map(decode)`."""
        return type(self).__name__.lower()

    @property
    def element_spec(self) -> Any:
        """Structure of `TensorSpec`s, or None if only running the pipeline would show it."""
        return None

    @property
    def cardinality(self) -> int:
        """Number of elements, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`."""
        return UNKNOWN_CARDINALITY

    @property
    def elementwise(self) -> bool:
        """Whether element i depends on input element i alone, so that a shard may be taken before this operation."""
        return False

    @property
    def split_local(self) -> bool:
        """Whether each element depends on a single split, whatever the others are. Not meaningful for sources."""
        return self.elementwise

    def repeatable_under(self, *, deterministic: bool) -> bool:
        """Whether this operation gives the same elements again from the same input and the same entropy.

        Args:
            deterministic: The default for operations without a setting of their own.
        """
        del deterministic
        return True

    @property
    def iteration_counter(self) -> IterationCounter | None:
        """Counts the iterations of a source that several datasets may read; None if they are counted elsewhere."""
        return None

    @property
    def draws_without_seed(self) -> bool:
        """Whether it draws at random without a seed from the user."""
        return False

    @property
    def remote_pipeline(self) -> Operation | None:
        """The pipeline that a service runs to produce this source's elements, if it is known."""
        return None

    @property
    def position_identity(self) -> Any:
        """The value that identifies this operation in a reading position, besides its name; None for all its fields."""
        return None

    @property
    def inputs_per_element(self) -> int:
        """How many elements of its only input make one element, whichever they are; 0 if that is not fixed.

        Splits of a source under such operations have as many elements as one element of the last of them needs.
        """
        return int(self.elementwise)

    def split_provider(self) -> SplitProvider | None:
        """Return how a dispatcher cuts this source into splits; None for an operation with inputs.

        Raises:
            UnimplementedError: the source cannot be split.
        """
        if self.inputs:
            return None
        raise UnimplementedError(f"the source {self.name} cannot be cut into splits")

    def build(self, context: BuildContext) -> Stage:
        """Build the stage of this operation and those of its inputs."""
        raise NotImplementedError

    def build_inputs(self, context: BuildContext) -> Sequence[Stage]:
        """Build the stages of the inputs, each with the numbers of its own split providers."""
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
            for stage in stages:  # they may already read from a service
                stage.close()
            raise
        return stages


class SameSpec(Operation, frozen=True):
    """An operation whose elements are those of its input: some, all, or all in another order."""

    @property
    def element_spec(self) -> Any:
        return self.inputs[0].element_spec


class Unchanged(SameSpec, frozen=True):
    """An operation whose elements are exactly its input's; it only affects how they are produced."""

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    @property
    def elementwise(self) -> bool:
        return True


def operation_of(value: Any) -> Operation | None:
    """Return the operation of a dataset; None for any other value."""
    found = getattr(value, "operation", None)
    return found if isinstance(found, Operation) else None


def count_sources(operation: Operation) -> int:
    """Count the sources of a tree that share splits; a source that is used twice counts twice."""
    if operation.replicated:
        return 0
    return sum(map(count_sources, operation.inputs)) if operation.inputs else 1


def walk(operation: Operation) -> Iterator[Operation]:
    """Yield a tree's operations, inputs first, from left to right."""
    for source in operation.inputs:
        yield from walk(source)
    yield operation
