"""`Dataset.unbatch`: makes the rows of each element the elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsnb.elements.structure import elements_of, flatten, structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.resume_point import ResumablePositions
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.pipeline.engine.to_numpy import numpy_leaf
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.specs import drop_dimension


class Unbatch(Operation, frozen=True, kw_only=True):
    """The rows of each element, along the first dimension of its leaves."""

    @property
    def element_spec(self) -> Any:
        return drop_dimension(self.inputs[0].element_spec)

    @property
    def cardinality(self) -> int:
        """Known if all elements have one known length."""
        source = self.inputs[0]
        if source.cardinality < 0 or source.element_spec is None:
            return min(source.cardinality, UNKNOWN_CARDINALITY) if source.cardinality != -1 else -1
        sizes = {leaf.shape[0] for leaf in flatten(source.element_spec)}
        size = sizes.pop() if len(sizes) == 1 else None
        return UNKNOWN_CARDINALITY if size is None else source.cardinality * size

    @property
    def split_local(self) -> bool:
        return True

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return UnbatchStage(self.name, source)


class UnbatchStage(Stage):
    """Cuts elements into rows; a run that is an array is cut as a whole."""

    def __init__(self, name: str, source: Stage) -> None:
        super().__init__(name, source)
        self._rows: Run = []
        self._pending: list[Any] = []
        self._size = 1
        self._resumable_positions = ResumablePositions()

    def produce(self, want: int) -> Run:
        while not len(self._rows):
            if not self._pending and not self._pull(want):
                return []
            # `_cut` may raise: the failed element is gone then, and the next ones stay pending.
            self._rows = self._cut(want)
        rows, self._rows = self._rows[:want], self._rows[want:]
        return rows

    def _pull(self, want: int) -> bool:
        """Pull as many elements as `want` rows will probably need."""
        self.note_resumable_position()
        run = self.inputs[0].pull(max(1, want // self._size))
        if isinstance(run, np.ndarray) and run.ndim > 1:
            self._rows = run.reshape(run.shape[0] * run.shape[1], *run.shape[2:])
            self._size = max(1, run.shape[1])
        else:
            self._pending = as_list(run)[::-1]
        return bool(len(run))

    def _cut(self, want: int) -> Run:
        rows: Run = self._rows
        while self._pending and len(rows) < want:
            try:
                more = rows_of(self._pending.pop())
            except InvalidArgumentError as error:
                return self.fail_after(error, as_list(rows))
            self._size = max(1, len(more))
            rows = [*as_list(rows), *as_list(more)] if len(rows) else more
        return rows


def columns_of_rows(element: Any) -> list[np.ndarray[Any, Any]]:
    """Return the leaves of one element as arrays of rows.

    Raises:
        InvalidArgumentError: the leaves have no first dimension, or first dimensions of different sizes.
    """
    arrays = [np.asarray(numpy_leaf(leaf)) for leaf in flatten(element)]
    if not arrays or any(not array.ndim for array in arrays):
        raise InvalidArgumentError(
            "an element that is to be unbatched holds a leaf without dimensions",
            did="the element was left out; reading continues with the next",
            hint="return arrays with one row for each element, for instance with np.array(...) in `map`",
        )
    if len({len(array) for array in arrays}) > 1:
        raise InvalidArgumentError(
            f"an element that is to be unbatched holds leaves of {[len(array) for array in arrays]} rows",
            did="the element was left out; reading continues with the next",
            hint="make the first dimensions equal",
        )
    return arrays


def rows_of(element: Any) -> Run:
    """Return the rows of one element.

    Raises:
        InvalidArgumentError: its leaves have no first dimension, or first dimensions of different sizes.
    """
    columns: list[Any] = [_text_rows(array) for array in columns_of_rows(element)]
    rows: Any = elements_of(structure_of(element), iter(columns))
    return rows if isinstance(rows, np.ndarray) else list(rows)


def _text_rows(array: np.ndarray[Any, Any]) -> Run:
    return as_list(array) if array.dtype.kind in "US" else array
