"""`Dataset.from_random_access`: the items of a user's object, by their indices.

The indices come from a range or a shuffled range, which also has the splits. So a split, skipped elements and a resumed
position cost no item that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dsnb.arguments import short_repr
from dsnb.elements.allocation import Allocator
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.calls import UserFunction
from dsnb.pipeline.engine.foreign_arrays import to_arrays
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.operations.map import MapStage
from dsnb.pipeline.sources.range import Range
from dsnb.pipeline.sources.shuffled_range import ShuffledRange


class FetchItems(Operation, frozen=True, kw_only=True):
    """`dataset[index]` for each index."""

    dataset: Any
    count: int

    @property
    def name(self) -> str:
        return f"from_random_access({type(self.dataset).__name__})"

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    @property
    def elementwise(self) -> bool:
        return True

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return FetchItemsStage(self, source, allocate=context.allocate, low_latency=context.low_latency)


class FetchItemsStage(MapStage):
    """Fetches items one by one, or a run at once if the dataset has `__getitems__`."""

    def __init__(self, operation: FetchItems, source: Stage, *, allocate: Allocator | None, low_latency: bool) -> None:
        function = _ItemFunction(operation.dataset, operation.name, allocate)
        super().__init__(operation.name, source, function, low_latency=low_latency)
        self._dataset = operation.dataset
        self._count = operation.count
        self._checked = False

    def next_inputs(self, want: int) -> list[Any]:
        """Return indices as Python numbers: not every dataset accepts those of NumPy."""
        return list(map(int, super().next_inputs(want)))

    def produce(self, want: int) -> Run:
        """Return the next items; a dataset of another length than when it was passed is one error, then the end."""
        if not self._checked:
            self._checked = True
            found = length_of(self._dataset)
            if found != self._count:
                self.skip(self._count)
                raise InvalidArgumentError(
                    f"`dataset` had {self._count} items when from_random_access was called, and has {found} now",
                    did="nothing was read",
                    hint="call from_random_access again after a change, and do not change the dataset while it is read",
                )
        return super().produce(want)


class _ItemFunction(UserFunction):
    """`dataset[index]`, with tensors, images and lists of numbers as arrays."""

    def __init__(self, dataset: Any, operation: str, allocate: Allocator | None) -> None:
        super().__init__(
            dataset.__getitem__, operation, keep_results=True, call=partial(_item, dataset), allocate=allocate
        )
        self._fetch_many: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)

    def extend(self, out: list[Any], run: list[Any]) -> BaseException | None:
        """Fetch a run at once if possible; if that fails, one by one, so that an error takes one item's place."""
        if self._fetch_many is None or len(run) < 2:
            return super().extend(out, run)
        indices = list(run)  # `run` may be shortened meanwhile
        try:
            items = list(self._fetch_many(list(indices)))
        except Exception:  # noqa: BLE001 - the failing item raises its own error below
            return super().extend(out, run)
        if len(items) != len(indices):
            return InvalidArgumentError(
                f"`__getitems__` of {self.operation} returned {len(items)} items for {len(indices)} indices",
                did="the error replaces one element; reading continues with the next",
                hint="return one item for each index, in their order",
            )
        return self._extend_with(out, items)

    def _extend_with(self, out: list[Any], items: list[Any]) -> BaseException | None:
        # Each item is taken out of the list, so that one that nothing else refers to need not be copied.
        items.reverse()
        convert = UserFunction(
            self.function, self.operation, keep_results=True, call=lambda _: to_arrays(items.pop()),
            allocate=self._allocate,
        )  # fmt: skip
        failure = convert.extend(out, [None] * len(items))
        self.returns_immutable = convert.returns_immutable
        return failure


def _item(dataset: Any, index: int) -> Any:
    return to_arrays(dataset[index])


def length_of(dataset: Any) -> int:
    """Return the number of items of a user's dataset.

    Raises:
        InvalidArgumentError: it has no length, or an impossible one.
    """
    kind = type(dataset).__name__
    for missing in ("__getitem__", "__len__"):
        if not hasattr(type(dataset), missing):
            raise InvalidArgumentError(
                f"`dataset` is {kind}, which has no {missing}",
                hint="pass an object with __len__ and __getitem__, or use from_generator for an iterable",
            )
    if isinstance(dataset, (str, bytes, Mapping)) or hasattr(dataset, "iloc"):
        raise InvalidArgumentError(
            f"`dataset` is {kind}, whose items are not found by the numbers from 0 on",
            hint="pass a list of rows; for columns, from_tensor_slices({'x': x, 'y': y})",
        )
    try:
        return len(dataset)
    except Exception as error:
        raise InvalidArgumentError(
            f"the length of `dataset` ({kind}) cannot be read: {short_repr(error)}",
            hint="return a whole number of 0 or more from __len__; for an unknown length use from_generator",
        ) from error


def random_access(dataset: Any, *, shuffle: bool, seed: int | None, reshuffle: bool) -> FetchItems:
    """Return the operation for a user's dataset."""
    count = length_of(dataset)
    indices: Operation = ShuffledRange(stop=count, seed=seed, reshuffle=reshuffle) if shuffle else Range(stop=count)
    return FetchItems(inputs=(indices,), dataset=dataset, count=count)
