"""`Dataset.from_tensor_slices`: the rows of arrays; one split for each row."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsnb.elements.copying import copy_rows, copy_run_length
from dsnb.elements.structure import Structure, elements_of, rebuild
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.sources.arrays import Column, read_only, row_spec
from dsnb.pipeline.splits import SourceStage, SplitProvider


class Slices(Operation, frozen=True, kw_only=True):
    """Rows of columns of equal length, nested like the structure."""

    structure: Structure
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return f"from_tensor_slices({self.cardinality})"

    @property
    def element_spec(self) -> Any:
        return rebuild(self.structure, map(row_spec, self.columns))

    @property
    def cardinality(self) -> int:
        return len(self.columns[0])

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, self.cardinality, divisible=True)

    def build(self, context: BuildContext) -> Stage:
        return SlicesStage(self, context)


class SlicesStage(SourceStage):
    """Returns rows as runs; rows of a single array are one slice."""

    one_element_per_split = True

    def __init__(self, operation: Slices, context: BuildContext) -> None:
        super().__init__(operation.name, context, operation.cardinality)
        self._structure = operation.structure
        self._columns = [_read_only_column(column) for column in operation.columns]
        self._may_share_memory = context.copied_later
        self._row_bytes = sum(column[:1].nbytes for column in self._columns if isinstance(column, np.ndarray))

    @property
    def may_share_memory(self) -> bool:
        """Whether array rows are views of the columns; otherwise they are copies."""
        return self._may_share_memory and not all(map(_is_flat, self._columns))

    def produce(self, want: int) -> Run:
        rows = self._splits.take(want if self._may_share_memory else copy_run_length(self._row_bytes, want))
        if not rows:
            return []
        columns: list[Any] = [column[rows.start : rows.stop] for column in self._columns]
        if not self._may_share_memory:
            columns = [column if _is_flat(column) else copy_rows(column) for column in columns]
        run: Any = elements_of(self._structure, iter(columns))
        return run if isinstance(run, np.ndarray) else list(run)


def _is_flat(column: Column) -> bool:
    """Whether the rows are text or scalars, which are always copies."""
    return isinstance(column, tuple) or (column.ndim == 1 and not column.dtype.names)


def _read_only_column(column: Column) -> Column:
    # An array that was unpickled is writable again.
    return column if isinstance(column, tuple) or not column.flags.writeable else read_only(column)
