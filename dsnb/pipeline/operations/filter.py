"""`Dataset.filter`: keeps the elements for which a user's function returns True."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any

from dsnb.pipeline.engine.as_bools import as_bools
from dsnb.pipeline.engine.calls import CallingStage, UserFunction
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.resume_point import ResumablePositions
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, SameSpec


class Filter(SameSpec, frozen=True, kw_only=True):
    """The elements for which `predicate` is true."""

    predicate: Callable[..., Any]

    @property
    def name(self) -> str:
        return f"filter({function_name(self.predicate)})"

    @property
    def split_local(self) -> bool:
        return True

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        function = UserFunction(self.predicate, self.name, keep_results=False)
        return FilterStage(self.name, source, function, low_latency=context.low_latency)


class FilterStage(CallingStage):
    """Calls the predicate for whole runs."""

    def __init__(self, name: str, source: Stage, function: UserFunction, *, low_latency: bool = False) -> None:
        super().__init__(name, source, function, low_latency=low_latency)
        self._resumable_positions = ResumablePositions()

    def produce(self, want: int) -> Run:
        if self._leftover_results:
            return self.take_leftover_results(want)
        while True:
            if self.idle:
                self.note_resumable_position()
            run, answers, failure = self.call_next(want)
            if not run:
                return []
            answers, failure = as_bools(self.name, answers, failure)
            out = list(compress(run, answers))
            if failure is not None:
                return self.deliver_before(out, run, len(answers), failure)
            if out:
                return out
