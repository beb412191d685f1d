"""`Dataset.choose_from_datasets`: each element from the dataset whose number another dataset gives."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.selecting import SelectStage
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.specs import merge_specs


@dataclass(frozen=True, kw_only=True, eq=False)
class ChooseFromDatasets(Operation):
    """The first input gives numbers; each stands for the next element of that one of the others."""

    rearranges = True

    stop_on_empty: bool = True

    @property
    def name(self) -> str:
        """As the user wrote it."""
        return "choose_from_datasets"

    @property
    def element_spec(self) -> Any:
        """What the datasets have in common."""
        return reduce(merge_specs, (source.element_spec for source in self.inputs[1:]))

    @property
    def cardinality(self) -> int:
        """That of the numbers, if none of the datasets ends."""
        choice, *sources = (source.cardinality for source in self.inputs)
        if choice == 0 or set(sources) == {INFINITE_CARDINALITY}:
            return choice
        return UNKNOWN_CARDINALITY

    def build(self, context: BuildContext) -> Stage:
        """A stage that reads numbers and follows them."""
        return ChooseStage(self, self.build_inputs(context))


class ChooseStage(SelectStage):
    """Draws are the numbers of the first input."""

    def __init__(self, operation: ChooseFromDatasets, inputs: Sequence[Stage]) -> None:
        self._choices, *sources = inputs
        self._count = len(sources)
        super().__init__(operation.name, inputs, sources, stop_on_empty=operation.stop_on_empty)

    def draw(self, want: int) -> Sequence[Any]:
        """The next numbers."""
        return as_list(self._choices.pull(want))

    def dataset_index(self, draw: Any) -> int:
        """The number itself."""
        try:
            index = operator.index(draw)
        except TypeError:
            index = -1
        if not 0 <= index < self._count:
            raise InvalidArgumentError(
                f"the choice {draw!r} is no number of one of {self._count} datasets",
                did="the choice was left out; reading goes on with the next",
                hint=f"let `choice_dataset` give whole numbers from 0 to {self._count - 1}",
            )
        return index
