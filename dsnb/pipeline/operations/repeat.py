"""`Dataset.repeat`: the input several times, built anew for each pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dsnb.dataclass import dataclass
from dsnb.errors import is_element_error
from dsnb.pipeline.engine.bookmarks import no_position_error
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, BuildContext, SameSpec
from dsnb.pipeline.specs import map_cardinality

_MAX_ITERATION_STARTS: Final = 4096
"""Beginnings of passes that are remembered; of more, every second one is forgotten."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeat(SameSpec):
    """The input `count` times; None for ever."""

    count: int | None = None

    @property
    def name(self) -> str:
        """With the count."""
        return "repeat()" if self.count is None else f"repeat({self.count})"

    @property
    def cardinality(self) -> int:
        """The input's times the count."""
        source, count = self.inputs[0].cardinality, self.count
        if count == 0 or source == 0:
            return 0
        return INFINITE_CARDINALITY if count is None else map_cardinality(source, lambda known: known * count)

    def build(self, context: BuildContext) -> Stage:
        """A stage that builds the input again and again."""
        return RepeatStage(self, context)


class RepeatStage(Stage):
    """One pass after the other, each with stages of its own.

    An endless repeat ends when a pass was empty, as another would be; unless other readers of a job, or other tasks,
    may have taken all of this one.
    """

    one_to_one = True

    def __init__(self, operation: Repeat, context: BuildContext) -> None:
        self._operation = operation
        self._source = operation.inputs[0]
        self._context = context
        self._iteration = 0
        self._iteration_elements = 0
        self._iteration_delivered = 0
        """Elements of this pass, and errors in the places of some."""
        self._previously_read = 0
        self._previous: Stage | None = None
        """The stage of the pass before, for those who still hold elements of it."""
        self._start_counts = (0, 0)
        """How many places came before that pass, and before this one."""
        self._earlier_starts: list[tuple[int, ResumePoint]] = []
        """How many places came before each of the passes before those two, and where it began."""
        self._ended = operation.cardinality == 0
        super().__init__(operation.name, *([] if self._ended else [self._build()]))

    def skip(self, count: int) -> int:
        """The input's, pass by pass."""
        left = count
        while left and not self._ended:
            skipped = self.inputs[0].skip(left)
            self._iteration_elements += skipped
            self._iteration_delivered += skipped
            left -= skipped
            if left:
                self._begin_next(self.inputs[0])
        return count - left

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """What is left of the count for this pass and the one before; what came before those is not known any more."""
        before, this = self._start_counts
        if self._previous is not None:
            if count < before:
                raise no_position_error(
                    f"an operation behind {self.name} may hold elements of earlier passes than the last",
                    "put `repeat` before `distribute`, or the operation that mixes elements before `repeat`",
                )
            yield self._previous, count - before
        yield from ((stage, max(0, count - this)) for stage in self.inputs)

    def resume_point(self, count: int) -> ResumePoint:
        """In this pass, or in the one before; else at the beginning of an earlier one."""
        before, this = self._start_counts
        passed, count = count, count + self._start_point.skip  # passes count what was left out when this stage began
        if count >= this and self.inputs:
            return ResumePoint(counter=self._iteration, inputs=(self.inputs[0].resume_point(count - this),))
        if self._previous is not None and count >= before:
            return ResumePoint(counter=self._iteration - 1, inputs=(self._previous.resume_point(count - before),))
        earlier = self._earlier_starts
        index = bisect_right(earlier, count, key=lambda begun: begun[0]) - 1
        if index >= 0:
            began, point = earlier[index]
            return replace(point, skip=count - began, skip_one_by_one=self._had_errors)
        return super().resume_point(passed)

    def begin_at(self, point: ResumePoint) -> None:
        """Begin in that pass."""
        if point.counter and self.inputs:
            self.inputs[0].close()
            self._iteration = point.counter
            self.inputs = (self._build(),)
        self._iteration_elements += 1  # the rest of a pass may be empty, and that is no sign that all passes are
        super().begin_at(point)

    def produce(self, want: int) -> Run:
        """The next elements of this pass, or of the next."""
        while not self._ended:
            run = self._pull(want)
            if len(run):
                self._iteration_elements += len(run)
                return run
            self._begin_next(self.inputs[0])
        return []

    def _pull(self, want: int) -> Run:
        try:
            run = self.inputs[0].pull(want)
        except Exception as error:
            self._iteration_delivered += is_element_error(error)
            raise
        self._iteration_delivered += len(run)
        return run

    def _build(self) -> Stage:
        endless = self._operation.count is None
        return self._source.build(self._context.in_iteration(self._iteration, endless=endless))

    def _begin_next(self, previous: Stage) -> None:
        # Ended also when building or starting fails: an error that came again at each pull would let no reader through.
        self._ended = True
        # Closed before the next one is built: two passes at once would hold files and threads twice.
        previous.close()
        if not self._has_next(previous):
            return
        self._note_start()
        self._iteration += 1
        self._previous, self._start_counts = (
            previous,
            (self._start_counts[1], self._start_counts[1] + self._iteration_delivered),
        )
        self._iteration_elements = self._iteration_delivered = 0
        self._previously_read = _elements_read(previous)
        stage = self._build()
        stage.continue_counters(previous)
        self.inputs = (stage,)
        self.adopt(stage)
        self._ended = False
        try:
            stage.start()
        except Exception:
            self._ended = True
            raise

    def _note_start(self) -> None:
        """Note where the pass before the one that ends began."""
        if self._previous is not None:
            point = ResumePoint(counter=self._iteration - 1, inputs=(self._previous.resume_point(0),))
            earlier = [*self._earlier_starts, (self._start_counts[0], point)]
            self._earlier_starts = earlier[::2] if len(earlier) > _MAX_ITERATION_STARTS else earlier

    def _has_next(self, previous: Stage) -> bool:
        count = self._operation.count
        if count is not None:
            return self._iteration + 1 < count
        if self._iteration_elements or previous.shared_with_other_readers():
            return True
        # Nothing was read at all: other tasks took the splits of this pass, the next one may bring some.
        return self._context.splits is not None and _elements_read(previous) == self._previously_read


def _elements_read(stage: Stage) -> int:
    """How many elements the sources under a stage gave so far."""
    return sum(map(_elements_read, stage.inputs)) if stage.inputs else stage.elements
