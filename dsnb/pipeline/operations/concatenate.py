"""`Dataset.concatenate`: one dataset behind the other."""

from __future__ import annotations

from typing import Any

from dsnb.dataclass import dataclass
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.specs import merge_specs, total_cardinality


@dataclass(frozen=True, kw_only=True, eq=False)
class Concatenate(Operation):
    """All elements of each input in turn."""

    rearranges = True

    @property
    def name(self) -> str:
        """As the user wrote it."""
        return "concatenate"

    @property
    def element_spec(self) -> Any:
        """What both specs have in common."""
        first, second = self.inputs
        return merge_specs(first.element_spec, second.element_spec)

    @property
    def cardinality(self) -> int:
        """The sum."""
        return total_cardinality([source.cardinality for source in self.inputs])

    def build(self, context: BuildContext) -> Stage:
        """A stage that reads the inputs in turn."""
        return ConcatenateStage(self.name, *self.build_inputs(context))


class ConcatenateStage(Stage):
    """Hands on the runs of the input whose turn it is."""

    def __init__(self, name: str, *sources: Stage) -> None:
        super().__init__(name, *sources)
        self._current = 0

    def start(self) -> None:
        """Only the input whose turn it is."""
        for stage in self.inputs[self._current : self._current + 1]:
            stage.start()

    def skip(self, count: int) -> int:
        """The inputs' in turn."""
        left = count
        while left and self._current < len(self.inputs):
            left -= self.inputs[self._current].skip(left)
            self._current += bool(left)
        return count - left

    def produce(self, want: int) -> Run:
        """The next elements."""
        while self._current < len(self.inputs):
            run = self.inputs[self._current].pull(want)
            if len(run):
                return run
            self._current += 1
        return []
