"""`Dataset.scan`: calls a user's function for each element, with a state that it passes from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsnb.elements.copying import IMMUTABLE, copy_element
from dsnb.elements.structure import LEAF, Structure, rebuild, structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.calls import ResultsStage, UserFunction
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.engine.to_numpy import mismatch
from dsnb.pipeline.operation import BuildContext, Operation


class Scan(Operation, frozen=True, kw_only=True):
    """The second part of `function(state, element)`; the first part is the next state."""

    structure: Structure
    leaves: tuple[Any, ...]
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return f"scan({function_name(self.function)})"

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    @property
    def inputs_per_element(self) -> int:
        return 1

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return ScanStage(self, source, low_latency=context.low_latency)


class ScanStage(ResultsStage):
    """Calls the function for one element after another. If a call fails, the state stays as it was."""

    def __init__(self, operation: Scan, source: Stage, *, low_latency: bool) -> None:
        function = UserFunction(operation.function, operation.name, keep_results=True, call=self._step)
        super().__init__(operation.name, source, function, low_latency=low_latency)
        self._structure = operation.structure
        self._state = rebuild(operation.structure, map(copy_element, operation.leaves))

    def _step(self, element: Any) -> Any:
        result = self.function.function(self._state, element)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidArgumentError(
                "The scan function must return a pair comprising the new state and the output value, "
                f"and {self.name} returned {type(result).__name__}",
                did="the error replaces this one element; the state is unchanged, and reading continues with the next",
                hint="return new_state, output",
            )
        state, output = result
        plain = self._structure is LEAF and type(state) in IMMUTABLE  # the usual state needs no look inside
        if not plain and structure_of(state) != self._structure:
            raise mismatch(state, self._structure)
        self._state = state
        return output
