"""`Dataset.filter`: the elements for which a user's function says yes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.pipeline.engine.calls import CallingStage, UserFunction
from dsnb.pipeline.engine.origin import function_name
from dsnb.pipeline.engine.resume_point import Marks
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.engine.truths import truths
from dsnb.pipeline.operation import BuildContext, SameKind


@dataclass(frozen=True, kw_only=True, eq=False)
class Filter(SameKind):
    """Elements for which `predicate` is true."""

    predicate: Callable[..., Any]

    @property
    def name(self) -> str:
        """With the function's name."""
        return f"filter({function_name(self.predicate)})"

    @property
    def keeps_splits(self) -> bool:
        """It does."""
        return True

    def build(self, context: BuildContext) -> Stage:
        """A stage that asks the predicate."""
        (source,) = self.build_inputs(context)
        function = UserFunction(self.predicate, self.name, keep=False)
        return FilterStage(self.name, source, function, prompt=context.prompt)


class FilterStage(CallingStage):
    """Asks the predicate for whole runs."""

    def __init__(self, name: str, source: Stage, function: UserFunction, *, prompt: bool = False) -> None:
        super().__init__(name, source, function, prompt=prompt)
        self._resume_marks = Marks()

    def produce(self, want: int) -> Run:
        """The next elements that pass; goes on until there is one."""
        if self._done:
            return self.done_before(want)
        while True:
            if self.idle:
                self.mark()
            run, answers, failure = self.answers(want)
            if not run:
                return []
            answers, failure = truths(self.name, answers, failure)
            out = list(compress(run, answers))
            if failure is not None:
                return self.passed(out, run, len(answers), failure)
            if out:
                return out
