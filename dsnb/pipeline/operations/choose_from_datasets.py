"""`Dataset.choose_from_datasets`: takes each element from the dataset whose index another dataset supplies."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from dsnb.arguments import short_repr
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.selecting import SelectStage
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.specs import merge_specs


class ChooseFromDatasets(Operation, frozen=True, kw_only=True):
    """The first input supplies indices; each one selects the next element of one of the other inputs."""

    rearranges = True

    stop_on_empty: bool = True

    @property
    def name(self) -> str:
        return "choose_from_datasets"

    @property
    def element_spec(self) -> Any:
        return reduce(merge_specs, (source.element_spec for source in self.inputs[1:]))

    @property
    def cardinality(self) -> int:
        """The number of indices, if no dataset can end before them."""
        choice, *sources = (source.cardinality for source in self.inputs)
        if choice == 0 or set(sources) == {INFINITE_CARDINALITY}:
            return choice
        return UNKNOWN_CARDINALITY

    def build(self, context: BuildContext) -> Stage:
        return ChooseStage(self, self.build_inputs(context))


class ChooseStage(SelectStage):
    """A select stage whose draws are the indices from its first input."""

    def __init__(self, operation: ChooseFromDatasets, inputs: Sequence[Stage]) -> None:
        self._choices, *sources = inputs
        self._count = len(sources)
        super().__init__(operation.name, inputs, sources, stop_on_empty=operation.stop_on_empty)

    def draw(self, want: int) -> Sequence[Any]:
        return as_list(self._choices.pull(want))

    def dataset_index(self, draw: Any) -> int:
        try:
            index = operator.index(draw)
        except TypeError:
            index = -1
        if not 0 <= index < self._count:
            shown = short_repr(draw.item() if isinstance(draw, np.generic) else draw)
            raise InvalidArgumentError(
                f"the choice {shown} is not the number of a dataset: they are numbered from 0 to {self._count - 1}",
                did="the choice was left out; reading continues with the next",
                hint="let `choice_dataset` yield only these numbers",
            )
        return index
