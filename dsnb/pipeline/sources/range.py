"""`Dataset.range`: consecutive int64 numbers; one split for each number."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.splits import SourceStage, SplitProvider


class Range(Operation, frozen=True, kw_only=True):
    """`start`, `start + step`, and so on, up to but not including `stop`."""

    start: int = 0
    stop: int
    step: int = 1

    @property
    def name(self) -> str:
        given = (self.start, self.stop, self.step)[: 2 if self.step == 1 else 3]
        return f"range({self.stop})" if given == (0, self.stop) else f"range{given}"

    @property
    def element_spec(self) -> Any:
        return TensorSpec((), np.int64)

    @property
    def cardinality(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, self.cardinality, divisible=True)

    def build(self, context: BuildContext) -> Stage:
        return RangeStage(self, context)


class RangeStage(SourceStage):
    """Returns numbers as one array for each run."""

    one_element_per_split = True

    def __init__(self, operation: Range, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(range(operation.start, operation.stop, operation.step)))
        self._numbers = range(operation.start, operation.stop, operation.step)

    def produce(self, want: int) -> Run:
        positions = self._splits.take(want)
        if not positions:
            return []
        numbers = self._numbers[positions.start : positions.stop]
        run = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
        run.flags.writeable = False
        return run
