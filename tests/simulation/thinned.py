"""A filter without threads and clocks, so that a simulation is the same each time."""

from __future__ import annotations

from dsnb.pipeline.engine.resume_point import ResumablePositions
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, SameSpec


def is_kept(number: int) -> bool:
    """Whether the filter keeps a number: two of three."""
    return bool(number % 3)


class Thinned(SameSpec, frozen=True, kw_only=True):
    """The numbers that are no multiples of three."""

    @property
    def name(self) -> str:
        return "thinned"

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    def build(self, context: BuildContext) -> Stage:
        return ThinnedStage(self.name, *self.build_inputs(context))


class ThinnedStage(Stage):
    """Notes after each pull where it can be resumed, as the real filter does."""

    def __init__(self, name: str, source: Stage) -> None:
        super().__init__(name, source)
        self._resumable_positions = ResumablePositions()

    def produce(self, want: int) -> Run:
        while run := as_list(self.inputs[0].pull(want)):
            kept = [number for number in run if is_kept(number)]
            self.note_resumable_position(undelivered=len(kept))
            if kept:
                return kept
        return []
