"""The numbers from 0 to n - 1 in a random order that takes no memory, for a shuffled random-access dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.engine.randomness import fixed_key, iteration_key
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.permutation import Permutation
from dsnb.pipeline.splits import SourceStage, SplitProvider


class ShuffledRange(Operation, frozen=True, kw_only=True):
    """Each number below `stop` once, in an order of its own for each iteration if `reshuffle` is set."""

    stop: int
    seed: int | None = None
    reshuffle: bool = True

    @property
    def name(self) -> str:
        return f"shuffled_range({self.stop})"

    @property
    def element_spec(self) -> Any:
        return TensorSpec((), np.int64)

    @property
    def cardinality(self) -> int:
        return self.stop

    @property
    def draws_without_seed(self) -> bool:
        """False if it has a seed or the same order in all iterations."""
        return self.seed is None and self.reshuffle

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, self.stop, divisible=True)

    def build(self, context: BuildContext) -> Stage:
        return ShuffledRangeStage(self, context)


class ShuffledRangeStage(SourceStage):
    """Returns the numbers at the positions that its cursor returns. All tasks of an iteration use one order."""

    one_element_per_split = True

    def __init__(self, operation: ShuffledRange, context: BuildContext) -> None:
        super().__init__(operation.name, context, operation.stop)
        key = iteration_key(context, operation.seed) if operation.reshuffle else fixed_key(operation.seed)
        self._order = Permutation(operation.stop, key)

    def produce(self, want: int) -> Run:
        run = self._order.of(self._splits.take(want))
        run.flags.writeable = False
        return run
