"""A dataset of elements that are there already: what a window or a group of another dataset is."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from dsnb.dataclass import dataclass
from dsnb.elements.copying import copy_run, copy_run_length, nbytes_of
from dsnb.elements.spec import spec_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.specs import are_compatible, merge_specs
from dsnb.pipeline.splits import SourceStage, SplitProvider

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset


@dataclass(frozen=True, kw_only=True, eq=False)
class Elements(Operation):
    """Elements that dsnb owns."""

    run: tuple[Any, ...]

    @property
    def name(self) -> str:
        """With their number."""
        return f"elements({len(self.run)})"

    @property
    def element_spec(self) -> Any:
        """What they have in common."""
        try:
            specs = list(map(spec_of, self.run))
        except InvalidArgumentError:
            return None
        same = bool(specs) and all(are_compatible(specs[0], spec) for spec in specs)
        return reduce(merge_specs, specs) if same else None

    @property
    def cardinality(self) -> int:
        """Their number."""
        return len(self.run)

    def split_provider(self) -> SplitProvider:
        """One split for each."""
        return SplitProvider(self.name, len(self.run))

    def build(self, context: BuildContext) -> Stage:
        """A stage that hands them out."""
        return ElementsStage(self, context)


class ElementsStage(SourceStage):
    """Slices of the run. Windows may overlap, and may be read more than once."""

    one_element_per_split = True

    def __init__(self, operation: Elements, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(operation.run))
        self._run = operation.run
        self._may_share_memory = context.copied_later

    @property
    def may_share_memory(self) -> bool:
        """The elements themselves where they are copied later, else copies."""
        return self._may_share_memory

    def produce(self, want: int) -> Run:
        """The next elements."""
        if not self._may_share_memory and self._run:
            want = copy_run_length(nbytes_of(self._run[0]), want)
        positions = self._splits.take(want)
        run = self._run[positions.start : positions.stop]
        return list(run) if self._may_share_memory else copy_run(list(run))


def dataset_of(run: Any) -> Dataset:
    """Elements that dsnb owns as a dataset."""
    from dsnb.pipeline.dataset import Dataset  # the module that makes users' datasets knows all operations

    return Dataset(Elements(run=tuple(run)))
