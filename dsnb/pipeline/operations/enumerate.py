"""`Dataset.enumerate`: pairs each element with its number."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsnb.elements.spec import TensorSpec
from dsnb.errors import is_element_error
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import AlignedStage, Run, Stage, as_list
from dsnb.pipeline.operation import BuildContext, Operation


class Enumerate(Operation, frozen=True, kw_only=True):
    """Pairs of an int64 number and an element."""

    rearranges = True

    start: int = 0

    @property
    def element_spec(self) -> Any:
        spec = self.inputs[0].element_spec
        return None if spec is None else (TensorSpec((), np.int64), spec)

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    @property
    def inputs_per_element(self) -> int:
        return 1

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return EnumerateStage(self, source)


class EnumerateStage(AlignedStage):
    """Numbers elements. A failed element uses up a number too, so that the others keep theirs."""

    def __init__(self, operation: Enumerate, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._number = operation.start

    def skip(self, count: int) -> int:
        skipped = self.inputs[0].skip(count)
        self._number += skipped
        return skipped

    def resume_point(self, count: int) -> ResumePoint:
        return self.resume_point_of_inputs(count, counter=self._start_point.counter + count)

    def begin_at(self, point: ResumePoint) -> None:
        super().begin_at(point)
        self._number += point.counter

    def produce(self, want: int) -> Run:
        first = self._number
        try:
            run = as_list(self.inputs[0].pull(want))
        except Exception as error:
            self._number += is_element_error(error)
            raise
        self._number += len(run)
        return list(zip(np.arange(first, self._number, dtype=np.int64), run, strict=True))
