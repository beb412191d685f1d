"""`Dataset.repeat`: reads the input several times, with new stages for each iteration."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from dsnb.errors import is_element_error
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.source_positions import no_position_error
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, BuildContext, SameSpec
from dsnb.pipeline.specs import map_cardinality

_MAX_ITERATION_STARTS: Final = 4096
"""Maximum number of iteration starts to remember; beyond that, every second one is dropped."""


class Repeat(SameSpec, frozen=True, kw_only=True):
    """The input `count` times; None means forever."""

    repeats_input = True
    count: int | None = None

    @property
    def name(self) -> str:
        return "repeat()" if self.count is None else f"repeat({self.count})"

    @property
    def cardinality(self) -> int:
        source, count = self.inputs[0].cardinality, self.count
        if count == 0 or source == 0:
            return 0
        return INFINITE_CARDINALITY if count is None else map_cardinality(source, lambda known: known * count)

    def build(self, context: BuildContext) -> Stage:
        return RepeatStage(self, context)


class RepeatStage(Stage):
    """Reads one iteration after another, each with stages of its own.

    An endless repeat ends after an empty iteration, because the next would be empty too; except when other clients of a
    job, or other tasks, may have taken all elements of this one.
    """

    one_to_one = True

    def __init__(self, operation: Repeat, context: BuildContext) -> None:
        self._operation = operation
        self._source = operation.inputs[0]
        self._context = context
        self._iteration = 0
        self._iteration_elements = 0
        self._iteration_delivered = 0
        """Elements of this iteration, including errors in place of elements."""
        self._previously_read = 0
        self._previous: Stage | None = None
        """The stage of the previous iteration, for operations that still buffer elements of it."""
        self._start_counts = (0, 0)
        """How many elements came before the previous iteration, and before this one."""
        self._earlier_starts: list[tuple[int, ResumePoint]] = []
        """For each earlier iteration that is remembered: how many elements came before it, and its resume point."""
        self._ended = operation.cardinality == 0
        self._between_iterations = False
        """Whether the last iteration is closed, and the next one is not built yet."""
        super().__init__(operation.name, *([] if self._ended else [self._build(self._iteration)]))

    def skip(self, count: int) -> int:
        left = count
        while left and not self._ended:
            skipped = 0 if self._between_iterations else self.inputs[0].skip(left)
            self._iteration_elements += skipped
            self._iteration_delivered += skipped
            left -= skipped
            if left:
                self._begin_next(self.inputs[0])
        return count - left

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """Divide the count between this iteration and the previous one; earlier ones are no longer known."""
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
        """A point in this iteration or the previous one; for earlier elements, the start of an earlier iteration."""
        before, this = self._start_counts
        passed, count = count, count + self._start_point.skip  # the starts count elements skipped when this stage began
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
        """Begin in the iteration that the point names."""
        if point.counter and self.inputs:
            self.inputs[0].close()
            self._iteration = point.counter
            self.inputs = (self._build(point.counter),)
        # The rest of an iteration may be empty; that does not mean that all iterations are empty.
        self._iteration_elements += 1
        super().begin_at(point)

    def produce(self, want: int) -> Run:
        while not self._ended:
            run = [] if self._between_iterations else self._pull(want)
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

    def _build(self, iteration: int) -> Stage:
        endless = self._operation.count is None
        return self._source.build(self._context.in_iteration(iteration, endless=endless))

    def _begin_next(self, previous: Stage) -> None:
        self._between_iterations = True  # stays set if an interrupt comes before the next one is built
        try:
            # Close before building the next one: two iterations at once would need files and threads twice.
            previous.close()
            if not self._has_next(previous):
                self._ended = True
                return
            read = _elements_read(previous)
            stage = self._build(self._iteration + 1)
        except Exception as error:
            # An element's error that came again at each pull would block the reader forever.
            self._ended = is_element_error(error)
            raise
        self._note_start()
        stage.continue_counters(previous)
        self._iteration, self._previously_read = self._iteration + 1, read
        start = self._start_counts[1]
        self._previous, self._start_counts = previous, (start, start + self._iteration_delivered)
        self._iteration_elements = self._iteration_delivered = 0
        self.inputs, self._between_iterations = (stage,), False
        self.adopt(stage)
        try:
            stage.start()
        except Exception as error:
            self._ended = is_element_error(error)  # after another error, the next pull starts it
            raise

    def _note_start(self) -> None:
        """Remember where the previous iteration began, now that it becomes an earlier one."""
        if self._previous is not None:
            point = ResumePoint(counter=self._iteration - 1, inputs=(self._previous.resume_point(0),))
            earlier = [*self._earlier_starts, (self._start_counts[0], point)]
            self._earlier_starts = earlier[::2] if len(earlier) > _MAX_ITERATION_STARTS else earlier

    def _has_next(self, previous: Stage) -> bool:
        count, splits = self._operation.count, self._context.splits
        if splits is not None and splits.refused:
            return False  # another task may have to continue here, and must find the rest of this iteration
        if count is not None:
            return self._iteration + 1 < count
        if self._iteration_elements or previous.shared_with_other_readers():
            return True
        # If nothing was read at all, other tasks took the splits of this iteration; the next one may bring some.
        return self._context.splits is not None and _elements_read(previous) == self._previously_read


def _elements_read(stage: Stage) -> int:
    """Return how many elements the sources under a stage produced so far."""
    return sum(map(_elements_read, stage.inputs)) if stage.inputs else stage.elements
