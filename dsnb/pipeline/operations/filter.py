"""`Dataset.filter`: the elements for which a user's function says yes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.calls import CallingStage, UserFunction
from dsnb.pipeline.engine.origin import function_name
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation

_TRUTHS = frozenset({bool, np.bool_})


@dataclass(frozen=True, kw_only=True, eq=False)
class Filter(Operation):
    """Elements for which `predicate` is true."""

    predicate: Callable[..., Any]

    @property
    def name(self) -> str:
        """With the function's name."""
        return f"filter({function_name(self.predicate)})"

    @property
    def element_spec(self) -> Any:
        """The input's."""
        return self.inputs[0].element_spec

    def build(self, context: BuildContext) -> Stage:
        """A stage that asks the predicate."""
        (source,) = self.build_inputs(context)
        return FilterStage(self.name, source, UserFunction(self.predicate, self.name, keep=False))


class FilterStage(CallingStage):
    """Asks the predicate for whole runs."""

    def produce(self, want: int) -> Run:
        """The next elements that pass; goes on until there is one."""
        if self._done:
            return self.done_before(want)
        while run := self.next_inputs(want):
            answers: list[Any] = []
            failure = self.function.extend(answers, run)
            if not _TRUTHS.issuperset(map(type, answers)):
                answers, failure = self._truths(answers, failure)
            out = list(compress(run, answers))
            if failure is not None:
                return self.passed(out, run, len(answers), failure)
            if out:
                return out
        return []

    def _truths(self, answers: list[Any], failure: BaseException | None) -> tuple[list[Any], BaseException | None]:
        """The answers as bool, up to the first that is none."""
        truths: list[Any] = []
        for answer in answers:
            try:
                truths.append(bool(answer))
            except Exception as error:  # noqa: BLE001 - an answer's own __bool__ is user code too
                return truths, _no_truth(self.name, answer, error)
        return truths, failure


def _no_truth(name: str, answer: Any, cause: Exception) -> InvalidArgumentError:
    shape = f" of shape {answer.shape}" if isinstance(answer, np.ndarray) else ""
    error = InvalidArgumentError(
        f"the function of {name} answered with {type(answer).__name__}{shape}, which is neither true nor false",
        did="the element was left out; reading goes on with the next",
        hint="return one truth value, for instance (x > 0).all()",
    )
    error.__cause__ = cause
    return error
