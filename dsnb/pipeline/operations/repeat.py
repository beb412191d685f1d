"""`Dataset.repeat`: the input several times, built anew for each pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dsnb.dataclass import dataclass
from dsnb.errors import stands_in_place
from dsnb.pipeline.engine.bookmarks import no_position
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, BuildContext, SameKind
from dsnb.pipeline.specs import scaled

_MOST_PASSES: Final = 4096
"""Beginnings of passes that are remembered; of more, every second one is forgotten."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeat(SameKind):
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
        return INFINITE_CARDINALITY if count is None else scaled(source, lambda known: known * count)

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
        self._pass = 0
        self._given = 0
        self._places = 0
        """Elements of this pass, and errors in the places of some."""
        self._read_before = 0
        self._before: Stage | None = None
        """The stage of the pass before, for those who still hold elements of it."""
        self._begins = (0, 0)
        """How many places came before that pass, and before this one."""
        self._earlier: list[tuple[int, ResumePoint]] = []
        """How many places came before each of the passes before those two, and where it began."""
        self._ended = operation.cardinality == 0
        super().__init__(operation.name, *([] if self._ended else [self._build()]))

    def skip(self, count: int) -> int:
        """The input's, pass by pass."""
        left = count
        while left and not self._ended:
            skipped = self.inputs[0].skip(left)
            self._given += skipped
            self._places += skipped
            left -= skipped
            if left:
                self._begin_next(self.inputs[0])
        return count - left

    def behind(self, count: int) -> Iterable[tuple[Stage, int]]:
        """What is left of the count for this pass and the one before; what came before those is not known any more."""
        before, this = self._begins
        if self._before is not None:
            if count < before:
                raise no_position(
                    f"an operation behind {self.name} may hold elements of earlier passes than the last",
                    "put `repeat` before `distribute`, or the operation that mixes elements before `repeat`",
                )
            yield self._before, count - before
        yield from ((stage, max(0, count - this)) for stage in self.inputs)

    def resume_point(self, count: int) -> ResumePoint:
        """In this pass, or in the one before; else at the beginning of an earlier one."""
        before, this = self._begins
        passed, count = count, count + self._begun.skip  # passes count what was left out when this stage began
        if count >= this and self.inputs:
            return ResumePoint(at=self._pass, inputs=(self.inputs[0].resume_point(count - this),))
        if self._before is not None and count >= before:
            return ResumePoint(at=self._pass - 1, inputs=(self._before.resume_point(count - before),))
        earlier = self._earlier
        place = bisect_right(earlier, count, key=lambda begun: begun[0]) - 1
        if place >= 0:
            began, point = earlier[place]
            return replace(point, skip=count - began, exhaustive=self._erred)
        return super().resume_point(passed)

    def begin_at(self, point: ResumePoint) -> None:
        """Begin in that pass."""
        if point.at and self.inputs:
            self.inputs[0].close()
            self._pass = point.at
            self.inputs = (self._build(),)
        self._given += 1  # the rest of a pass may be empty, and that is no sign that all passes are
        super().begin_at(point)

    def produce(self, want: int) -> Run:
        """The next elements of this pass, or of the next."""
        while not self._ended:
            run = self._pull(want)
            if len(run):
                self._given += len(run)
                return run
            self._begin_next(self.inputs[0])
        return []

    def _pull(self, want: int) -> Run:
        try:
            run = self.inputs[0].pull(want)
        except Exception as error:
            self._places += stands_in_place(error)
            raise
        self._places += len(run)
        return run

    def _build(self) -> Stage:
        endless = self._operation.count is None
        return self._source.build(self._context.in_pass(self._pass, endless=endless))

    def _begin_next(self, before: Stage) -> None:
        # Ended also when building or starting fails: an error that came again at each pull would let no reader through.
        self._ended = True
        # Closed before the next one is built: two passes at once would hold files and threads twice.
        before.close()
        if not self._goes_on(before):
            return
        self._remember()
        self._pass += 1
        self._before, self._begins = before, (self._begins[1], self._begins[1] + self._places)
        self._given = self._places = 0
        self._read_before = _read(before)
        stage = self._build()
        stage.carry_on(before)
        self.inputs = (stage,)
        self.adopt(stage)
        self._ended = False
        try:
            stage.start()
        except Exception:
            self._ended = True
            raise

    def _remember(self) -> None:
        """Note where the pass before the one that ends began."""
        if self._before is not None:
            point = ResumePoint(at=self._pass - 1, inputs=(self._before.resume_point(0),))
            earlier = [*self._earlier, (self._begins[0], point)]
            self._earlier = earlier[::2] if len(earlier) > _MOST_PASSES else earlier

    def _goes_on(self, before: Stage) -> bool:
        count = self._operation.count
        if count is not None:
            return self._pass + 1 < count
        if self._given or before.may_be_taken_by_others():
            return True
        # Nothing was read at all: other tasks took the splits of this pass, the next one may bring some.
        return self._context.splits is not None and _read(before) == self._read_before


def _read(stage: Stage) -> int:
    """How many elements the sources under a stage gave so far."""
    return sum(map(_read, stage.inputs)) if stage.inputs else stage.elements
