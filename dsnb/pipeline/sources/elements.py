"""A dataset of elements in memory: a window or a group of another dataset."""

from __future__ import annotations

from functools import reduce
from typing import Any

from dsnb.elements.copying import copy_run, copy_run_length, nbytes_of
from dsnb.elements.spec import spec_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.specs import are_compatible, merge_specs
from dsnb.pipeline.splits import SourceStage, SplitProvider


class Elements(Operation, frozen=True, kw_only=True):
    """Elements in memory that dsnb owns."""

    run: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"elements({len(self.run)})"

    @property
    def element_spec(self) -> Any:
        """The spec that fits all elements; None if they differ or a value is no valid leaf."""
        try:
            specs = list(map(spec_of, self.run))
        except InvalidArgumentError:
            return None
        same = bool(specs) and all(are_compatible(specs[0], spec) for spec in specs)
        return reduce(merge_specs, specs) if same else None

    @property
    def cardinality(self) -> int:
        return len(self.run)

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, len(self.run))

    def build(self, context: BuildContext) -> Stage:
        return ElementsStage(self, context)


class ElementsStage(SourceStage):
    """Returns slices of the run, copied if needed: windows may overlap and be read more than once."""

    one_element_per_split = True

    def __init__(self, operation: Elements, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(operation.run))
        self._run = operation.run
        self._may_share_memory = context.copied_later

    @property
    def may_share_memory(self) -> bool:
        """Whether it returns the elements themselves; otherwise copies."""
        return self._may_share_memory

    def produce(self, want: int) -> Run:
        if not self._may_share_memory and self._run:
            want = copy_run_length(nbytes_of(self._run[0]), want)
        positions = self._splits.take(want)
        run = self._run[positions.start : positions.stop]
        return list(run) if self._may_share_memory else copy_run(list(run))
