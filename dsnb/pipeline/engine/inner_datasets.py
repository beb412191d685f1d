"""Datasets that a user's function creates while the pipeline runs, for `flat_map` and `interleave`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsnb.cache.opened_files import track_opened_files
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.calls import UserFunction, call_once
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import BuildContext, Operation, operation_of


class InnerDatasets:
    """The stages of the datasets that a function creates from a stage's elements, one by one.

    Each dataset is read whole, never split, and is an iteration of its own: shuffles in it have a new order.

    Args:
        name: The name of the operation.
        function: The user's function; returns a Dataset.
        source: The stage whose elements the function gets.
        context: The context of the operation.
    """

    def __init__(self, name: str, function: Callable[..., Any], source: Stage, context: BuildContext) -> None:
        self._function = UserFunction(function, name, keep_results=False)
        self._source = source
        self._context = context.inner()
        self.count = 0
        """How many datasets were created."""
        self.pulled: list[Any] = []
        """The element whose dataset is being created; it stays if the function is interrupted."""

    def begin_at(self, count: int) -> None:
        """Continue as if `count` datasets had been created."""
        self.count = count

    def next(self) -> Stage | None:
        """Return the stage of the next dataset; None at the end of the input.

        Raises:
            Exception: the error of the input or of the function; the next call continues with the next element.
        """
        if not self.pulled:
            self.pulled = as_list(self._source.pull(1))
        if not self.pulled:
            return None
        try:
            stage = self._stage_of(self.pulled[0])
        except Exception:
            self.pulled, self.count = [], self.count + 1
            raise
        self.pulled, self.count = [], self.count + 1
        return stage

    def _stage_of(self, element: Any) -> Stage:
        with track_opened_files(self._context.opened_files):
            operation = self._operation(call_once(self._function, element))
        stage = operation.build(self._context.in_iteration(self.count))
        try:
            stage.start()
        except BaseException:
            stage.close()
            raise
        return stage

    def _operation(self, made: Any) -> Operation:
        operation = operation_of(made)
        if operation is not None:
            return operation
        raise InvalidArgumentError(
            f"the function of {self._function.operation} returned {type(made).__name__}, not a Dataset",
            did="the element was left out; reading continues with the next",
            hint="return a dsnb.Dataset, for instance Dataset.from_tensor_slices(values)",
        )
