"""`Dataset.ignore_errors`: drops elements that failed, up to a limit, and counts them."""

from __future__ import annotations

from typing import Final

from dsnb.arguments import short_repr
from dsnb.errors import DataLossWarning, is_element_error, warn
from dsnb.pipeline.engine.resume_point import ResumablePositions
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, SameSpec

_SHOWN: Final = 3
"""How many errors the warning shows."""


class IgnoreErrors(SameSpec, frozen=True, kw_only=True):
    """The elements that did not fail. Errors after the first `budget` are raised; without a budget, none is."""

    runs_on_workers = False

    budget: int | None = None

    @property
    def name(self) -> str:
        return "ignore_errors"

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return IgnoreErrorsStage(self, source)


class IgnoreErrorsStage(Stage):
    """Pulls until an element comes; warns once of what was dropped: at the end, or when reading stops before it."""

    def __init__(self, operation: IgnoreErrors, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._budget = operation.budget
        self._dropped = 0
        self._first: list[str] = []
        self._resumable_positions = ResumablePositions()

    def produce(self, want: int) -> Run:
        while True:
            self.note_resumable_position()
            try:
                run = self.inputs[0].pull(want)
            except Exception as error:
                if not is_element_error(error):
                    raise
                if self._budget is not None and self._dropped >= self._budget:
                    error.add_note(f"ignore_errors has dropped {self._dropped:,} elements, which is its `budget`")
                    raise
                self._note(error)
                continue
            if not len(run):
                self._announce()
            return run

    def _note(self, error: Exception) -> None:
        self._dropped += 1
        if len(self._first) < _SHOWN:
            self._first.append(f"{type(error).__name__}: {short_repr(str(error).partition(chr(10))[0])}")

    def _announce(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            warn(
                f"ignore_errors dropped {dropped:,} element(s) that failed, in a pass with {self.elements:,} others. "
                f"The first error(s): {'; '.join(self._first)}",
                DataLossWarning,
            )

    def release(self, unread: int) -> None:
        self._announce()
