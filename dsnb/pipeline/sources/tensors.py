"""`Dataset.from_tensors`: the value as the only element; one split."""

from __future__ import annotations

from typing import Any

from dsnb.elements.copying import copy_element
from dsnb.elements.spec import leaf_spec
from dsnb.elements.structure import Structure, rebuild
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.splits import SourceStage, SplitProvider


class Tensors(Operation, frozen=True, kw_only=True):
    """One element, stored as structure and leaves."""

    structure: Structure
    leaves: tuple[Any, ...]

    @property
    def name(self) -> str:
        return "from_tensors"

    @property
    def element_spec(self) -> Any:
        return rebuild(self.structure, map(leaf_spec, self.leaves))

    @property
    def cardinality(self) -> int:
        return 1

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, 1)

    def build(self, context: BuildContext) -> Stage:
        return TensorsStage(self, context)


class TensorsStage(SourceStage):
    """Returns the value once, then the end."""

    one_element_per_split = True

    def __init__(self, operation: Tensors, context: BuildContext) -> None:
        super().__init__(operation.name, context, 1)
        self._operation = operation
        self._may_share_memory = context.copied_later

    @property
    def may_share_memory(self) -> bool:
        """Whether it returns the value itself; otherwise a copy."""
        return self._may_share_memory

    def produce(self, want: int) -> Run:
        if not self._splits.take(want):
            return []
        leaves = self._operation.leaves if self._may_share_memory else map(copy_element, self._operation.leaves)
        return [rebuild(self._operation.structure, iter(leaves))]
