"""`Dataset.range`: consecutive int64 numbers; one split for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.splits import SourceStage, SplitProvider


@dataclass(frozen=True, kw_only=True, eq=False)
class Range(Operation):
    """`start`, `start + step`, and so on, up to but without `stop`."""

    start: int = 0
    stop: int
    step: int = 1

    @property
    def name(self) -> str:
        """As the user would write it."""
        given = (self.start, self.stop, self.step)[: 2 if self.step == 1 else 3]
        return f"range({self.stop})" if given == (0, self.stop) else f"range{given}"

    @property
    def element_spec(self) -> Any:
        """An int64 scalar."""
        return TensorSpec((), np.int64)

    @property
    def cardinality(self) -> int:
        """Known from the bounds."""
        return len(range(self.start, self.stop, self.step))

    def split_provider(self) -> SplitProvider:
        """One split for each number."""
        return SplitProvider(self.name, self.cardinality)

    def build(self, context: BuildContext) -> Stage:
        """A stage that counts."""
        return RangeStage(self, context)


class RangeStage(SourceStage):
    """Numbers as arrays, made by the run."""

    one_element_per_split = True

    def __init__(self, operation: Range, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(range(operation.start, operation.stop, operation.step)))
        self._numbers = range(operation.start, operation.stop, operation.step)

    def produce(self, want: int) -> Run:
        """The next numbers."""
        positions = self._splits.take(want)
        if not positions:
            return []
        numbers = self._numbers[positions.start : positions.stop]
        run = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
        run.flags.writeable = False
        return run
