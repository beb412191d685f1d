"""`Dataset.sample_from_datasets`: takes each element from a dataset that is drawn at random."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

from dsnb.pipeline.engine.randomness import fixed_generator, generator
from dsnb.pipeline.engine.selecting import SelectStage
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, BuildContext, Operation, walk
from dsnb.pipeline.specs import merge_specs, total_cardinality


class SampleFromDatasets(Operation, frozen=True, kw_only=True):
    """The next element of input k with probability `weights[k]`; all weights are positive."""

    rearranges = True

    weights: tuple[float, ...]
    seed: int | None = None
    stop_on_empty: bool = False
    rerandomize: bool = False

    @property
    def name(self) -> str:
        return "sample_from_datasets"

    @property
    def element_spec(self) -> Any:
        return reduce(merge_specs, (source.element_spec for source in self.inputs))

    @property
    def cardinality(self) -> int:
        """The sum; with `stop_on_empty`, known only if no input ends."""
        found = [source.cardinality for source in self.inputs]
        if not self.stop_on_empty:
            return total_cardinality(found)
        return INFINITE_CARDINALITY if set(found) == {INFINITE_CARDINALITY} else UNKNOWN_CARDINALITY

    @property
    def draws_without_seed(self) -> bool:
        return self.seed is None

    def build(self, context: BuildContext) -> Stage:
        return SampleStage(self, self.build_inputs(context), context)


class SampleStage(SelectStage):
    """A select stage whose draws are numbers in [0, 1), divided among the datasets that have not ended."""

    def __init__(self, operation: SampleFromDatasets, sources: Sequence[Stage], context: BuildContext) -> None:
        super().__init__(operation.name, sources, sources, stop_on_empty=operation.stop_on_empty)
        self._weights = operation.weights
        node_index = sum(1 for _ in walk(operation))
        anew = operation.seed is None or operation.rerandomize
        self._random = generator(context, operation.seed, node_index) if anew else fixed_generator(operation.seed)
        self._cumulative_weights: tuple[frozenset[int], list[int], list[float]] = (frozenset(), [], [])

    def draw(self, want: int) -> Sequence[Any]:
        """Return the next random numbers; the sequence does not depend on run lengths."""
        return self._random.random(want).tolist()  # type: ignore[no-any-return]

    def dataset_index(self, draw: Any) -> int:
        if self._cumulative_weights[0] != self.active:
            indices = sorted(self.active)
            self._cumulative_weights = (
                frozenset(self.active),
                indices,
                list(accumulate(self._weights[index] for index in indices)),
            )
        _, indices, ends = self._cumulative_weights
        return indices[min(bisect_right(ends, draw * ends[-1]), len(indices) - 1)]
