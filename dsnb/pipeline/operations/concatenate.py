"""`Dataset.concatenate`: appends one dataset to another."""

from __future__ import annotations

from typing import Any

from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.specs import merge_specs, total_cardinality


class Concatenate(Operation, frozen=True, kw_only=True):
    """All elements of the first input, then all of the next."""

    rearranges = True

    @property
    def name(self) -> str:
        return "concatenate"

    @property
    def element_spec(self) -> Any:
        first, second = self.inputs
        return merge_specs(first.element_spec, second.element_spec)

    @property
    def cardinality(self) -> int:
        return total_cardinality([source.cardinality for source in self.inputs])

    def build(self, context: BuildContext) -> Stage:
        return ConcatenateStage(self.name, *self.build_inputs(context))


class ConcatenateStage(Stage):
    """Returns the runs of one input after another."""

    def __init__(self, name: str, *sources: Stage) -> None:
        super().__init__(name, *sources)
        self._current = 0

    def start(self) -> None:
        """Start only the current input."""
        for stage in self.inputs[self._current : self._current + 1]:
            stage.start()

    def skip(self, count: int) -> int:
        left = count
        while left and self._current < len(self.inputs):
            left -= self.inputs[self._current].skip(left)
            self._current += bool(left)
        return count - left

    def produce(self, want: int) -> Run:
        while self._current < len(self.inputs):
            run = self.inputs[self._current].pull(want)
            if len(run):
                return run
            self._current += 1
        return []
