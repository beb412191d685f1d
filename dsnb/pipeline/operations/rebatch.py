"""`Dataset.rebatch`: cuts and joins batches to other sizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from time import perf_counter_ns
from typing import Any

import numpy as np

from dsnb.elements.columns import compatible_dtypes
from dsnb.elements.structure import Structure, flatten, rebuild, structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.pipeline.engine.to_numpy import mismatch
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.operations.unbatch import columns_of_rows
from dsnb.pipeline.specs import add_dimension, drop_dimension

Array = np.ndarray[Any, Any]


class Rebatch(Operation, frozen=True, kw_only=True):
    """The rows of the input's batches, in batches of `sizes` by turns."""

    sizes: tuple[int, ...]
    drop_remainder: bool = False

    @property
    def name(self) -> str:
        return f"rebatch({self.sizes[0] if len(self.sizes) == 1 else list(self.sizes)})"

    @property
    def element_spec(self) -> Any:
        """The input's spec with another first dimension, known if all batches are full and of one size."""
        known = self.drop_remainder and len(set(self.sizes)) == 1
        return add_dimension(drop_dimension(self.inputs[0].element_spec), self.sizes[0] if known else None)

    @property
    def cardinality(self) -> int:
        """Known if all batches of the input have one known size."""
        (source,) = self.inputs
        if source.cardinality <= 0:
            return source.cardinality
        sizes = {leaf.shape[0] for leaf in flatten(source.element_spec)} if source.element_spec is not None else {None}
        size = sizes.pop()
        return UNKNOWN_CARDINALITY if size is None else self._batches(source.cardinality * size)

    def _batches(self, rows: int) -> int:
        turns, rest = divmod(rows, sum(self.sizes))
        count = turns * len(self.sizes)
        for size in self.sizes:
            count += rest >= size or (rest > 0 and not self.drop_remainder)
            rest = max(0, rest - size)
        return count

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return RebatchStage(self, source)


class RebatchStage(Stage):
    """Buffers batches until they have enough rows for the next output.

    A batch whose structure or rows differ from the first is dropped; its error takes its place.
    """

    def __init__(self, operation: Rebatch, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._sizes: Iterator[int] = cycle(operation.sizes)
        self._size = next(self._sizes)
        self._drop_remainder = operation.drop_remainder
        self._run_length = AdaptiveRunLength()
        self._waiting: deque[Any] = deque()
        self._held: deque[list[Array]] = deque()
        self._rows = 0
        self._structure: Structure | None = None
        self._first: list[Array] = []

    def produce(self, want: int) -> Run:
        ended = False
        while self._rows < self._size and not ended:
            if not self._waiting:
                began = perf_counter_ns()
                self._waiting.extend(as_list(self.inputs[0].pull(min(want, self._run_length.want))))
                self._run_length.note(perf_counter_ns() - began)
            ended = not self._waiting
            if not ended:
                self._add_batch(self._waiting.popleft())
        out: list[Any] = []
        while len(out) < want and self._rows >= self._size:
            out.append(self._cut(self._size))
        if not out and self._rows and not self._drop_remainder:
            out.append(self._cut(self._rows))
        return out

    def _add_batch(self, batch: Any) -> None:
        columns = columns_of_rows(batch)
        if self._structure is None:
            self._structure, self._first = structure_of(batch), columns
        if structure_of(batch) != self._structure:
            raise mismatch(batch, self._structure)
        for first, column in zip(self._first, columns, strict=True):
            if not compatible_dtypes(first.dtype, column.dtype) or first.shape[1:] != column.shape[1:]:
                raise _mismatch_error(column, first)
        if len(columns[0]):
            self._held.append(columns)
            self._rows += len(columns[0])

    def _cut(self, size: int) -> Any:
        taken: list[list[Array]] = []
        missing = size
        while missing:
            columns = self._held.popleft()
            taken.append([column[:missing] for column in columns])
            if len(columns[0]) > missing:
                self._held.appendleft([column[missing:] for column in columns])
            missing -= len(taken[-1][0])
        self._rows -= size
        self._size = next(self._sizes)
        assert self._structure is not None
        return rebuild(self._structure, map(_concat_columns, zip(*taken, strict=True)))


def _concat_columns(parts: Sequence[Array]) -> Array:
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    joined.flags.writeable = False
    return joined


def _mismatch_error(column: Array, first: Array) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a batch has rows of the shape {column.shape[1:]} and the dtype {column.dtype}, the first one of "
        f"{first.shape[1:]} and {first.dtype}",
        did="the batch was left out; reading continues with the next",
        hint="make them equal before `rebatch`, for instance in `map`",
    )
