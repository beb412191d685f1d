"""`Dataset.take_while`: keeps the elements before the first for which a user's function returns False."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsnb.pipeline.engine.as_bools import as_bools
from dsnb.pipeline.engine.calls import CallingStage, UserFunction
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, SameSpec


class TakeWhile(SameSpec, frozen=True, kw_only=True):
    """The elements before the first for which `predicate` is false."""

    predicate: Callable[..., Any]

    @property
    def name(self) -> str:
        return f"take_while({function_name(self.predicate)})"

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY if self.inputs[0].cardinality else 0

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        function = UserFunction(self.predicate, self.name, keep_results=False)
        return TakeWhileStage(self.name, source, function, low_latency=context.low_latency)


class TakeWhileStage(CallingStage):
    """Calls the predicate for whole runs; its results and errors after the first False do not count."""

    def __init__(self, name: str, source: Stage, function: UserFunction, *, low_latency: bool) -> None:
        super().__init__(name, source, function, low_latency=low_latency)
        self._ended = False

    def produce(self, want: int) -> Run:
        if self._leftover_results:
            return self.take_leftover_results(want)
        if self._ended:
            return []
        run, answers, failure = self.call_next(want)
        answers, failure = as_bools(self.name, answers, failure)
        if False in answers:
            self._ended = True
            return run[: answers.index(False)]
        if failure is not None:
            return self.deliver_before(run[: len(answers)], run, len(answers), failure)
        return run
