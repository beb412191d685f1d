"""One order of elements for any number of workers: the order of the splits; for `Options(deterministic=True)`.

Theory of operation. A DYNAMIC job divides a source into splits, and which worker gets which split depends on timing.
With `Options(deterministic=True)` in the pipeline, the elements come nevertheless in one order, for any number of
workers, and whatever happens to these. Four parts make that so:

* *Units.* A unit is a run of consecutive splits; units are numbered from 0. Their size follows from the pipeline alone
  (`splits_per_unit`), never from the workers. The dispatcher gives out whole units, in ascending order, each to one
  task.
* *Elements follow from the unit.* Operations that mix splits are refused (`order_obstacle`). A worker runs a new
  pipeline for each unit (`UnitStage`), so no buffer, random generator or counter survives from one unit to the next,
  and what draws at random without a seed draws from the number of the unit.
* *Marks.* Only the worker knows where units begin and end in its task's sequence: a filter may leave nothing of a unit.
  It sends its reader a mark for each beginning and each end, with the index in the sequence, before any element after
  that place (`wire/unit_mark`). Frames know nothing of units.
* *The reader waits for the unit that is due.* It yields the elements of unit 0, then those of unit 1, and so on
  (`client/unit_order`). Elements of later units wait in the buffer of their task. Each task has a limit of bytes, at
  which its worker stops: a slow worker delays the others and costs no memory. The units of one task ascend, so what it
  sends first is due first, and the task with the unit that is due is never blocked by its own later elements.

When a worker dies, another one takes its task over: it makes the unfinished units again and continues the sequence of
the task with the same indices (`dispatcher/handlers/reassignment`). It sends the marks again as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from dsnb.errors import is_element_error
from dsnb.pipeline.engine.randomness import FIXED_SEED
from dsnb.pipeline.engine.resume_point import ResumablePositions, ResumePoint
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation, walk
from dsnb.pipeline.operations.cache import Cache
from dsnb.pipeline.operations.cache_splits import SingleRangeFeed
from dsnb.pipeline.operations.with_options import build_pipeline, options_of
from dsnb.pipeline.splits import shares_exactly, split_providers
from dsnb.stopwatch import Stopwatch

UNIT_ELEMENTS: Final = 32
"""How many elements of the source one unit has, if the source can be cut anywhere."""

UnitListener = Callable[[int, int, bool], None]
"""Called at the beginning and at the end of a unit, with its number, how many elements were made before that moment,
and whether it is the end."""


def wants_split_order(operation: Operation) -> bool:
    """Whether a pipeline asks for one order of its elements for any number of workers."""
    return options_of(operation).deterministic is True


def splits_per_unit(operation: Operation) -> int:
    """How many splits make one unit of a pipeline with a single source.

    Example:
        >>> from dsnb.pipeline.dataset import Dataset
        >>> [splits_per_unit(ds.operation) for ds in (Dataset.range(100), Dataset.range(100).batch(10))]
        [32, 3]
    """
    (provider,) = split_providers(operation)
    return max(1, UNIT_ELEMENTS // provider.size) if provider.divisible else 1


def order_obstacle(operation: Operation) -> str:
    """Return which operation keeps a pipeline's elements from having one order; empty if there is none.

    Example:
        >>> from dsnb.pipeline.dataset import Dataset
        >>> order_obstacle(Dataset.range(9).map(abs).batch(2).operation)
        ''
        >>> order_obstacle(Dataset.range(9).shuffle(4).operation)
        'shuffle(4) mixes splits'
    """
    return next(_obstacles(operation), "")


def _obstacles(operation: Operation) -> Iterator[str]:
    for step in walk(operation):
        if len(step.inputs) > 1 or step.replicated:
            yield f"{step.name} combines several sources"
        elif isinstance(step, Cache):
            yield f"{step.name} records splits in an order that depends on timing"
        elif not step.repeatable_under(deterministic=True):
            yield f"{step.name} hands out what is ready first"
        elif step.inputs and not (step.split_local or _batches_within_splits(step)):
            yield f"{step.name} mixes splits"


def _batches_within_splits(step: Operation) -> bool:
    return step.inputs_per_element > 1 and shares_exactly(step)


class UnitStage(Stage):
    """Runs the pipeline once for each unit that its task gets, and tells where in the sequence the units are.

    Args:
        operation: The pipeline.
        context: The context of the task.
    """

    def __init__(self, operation: Operation, context: BuildContext) -> None:
        super().__init__("splits in order")
        assert context.splits is not None, "only the tasks of a DYNAMIC job have units"
        self.on_unit: UnitListener = lambda _unit, _made, _ended: None
        self._operation = operation
        # Without low latency: a thread for each function and unit would cost more than it gains.
        self._context = replace(context, low_latency=False)
        self._size = splits_per_unit(operation)
        self._ranges = context.splits.open(context.provider)
        self._waits = Stopwatch()
        """Measures waiting for splits."""
        self._range = (0, 0)
        """The splits in hand that no pipeline was made for."""
        self.made = 0
        """Elements made since it was built, errors in place of elements and skipped ones included."""
        self._unit: int | None = None
        """The unit that is being produced; None between two units."""
        self._finished_splits = self._splits_in_unit = 0
        self._resumable_positions = ResumablePositions()

    def produce(self, want: int) -> Run:
        while self._unit is not None or self._next_unit():
            try:
                run = self.inputs[0].pull(want)
            except Exception as error:
                self.made += is_element_error(error)
                raise
            self.made += len(run)
            if len(run):
                return run
            self._end_unit()
        return []

    def _next_unit(self) -> bool:
        """Begin with the next unit; False if there is none."""
        first, end = self._range
        if first == end:
            self._waits.start()
            try:
                found = next(self._ranges, None)
            finally:
                self._waits.stop()
            if found is None:
                return False
            first, end = found
        unit = first // self._size
        stop = min(end, (unit + 1) * self._size)
        self._range, self._splits_in_unit = (stop, end), stop - first
        self._begin_unit(unit, first, stop)
        return True

    def _begin_unit(self, unit: int, first: int, stop: int) -> None:
        context = replace(self._context, splits=SingleRangeFeed(first, stop), entropy=(FIXED_SEED << 64) + unit)
        self._unit = unit
        self.on_unit(unit, self.made, False)
        previous = self.inputs
        try:
            stage = build_pipeline(self._operation, context)
        except Exception as error:
            if is_element_error(error):
                self.made += 1
                self._end_unit()
            raise
        for one in previous:
            stage.continue_counters(one)
        self.inputs = (stage,)
        self.adopt(stage)

    def _end_unit(self) -> None:
        assert self._unit is not None
        ended, self._unit = self._unit, None
        for stage in self.inputs:
            stage.close()
        self._finished_splits += self._splits_in_unit
        self.note_resumable_position(self._finished_splits)
        self.on_unit(ended, self.made, True)

    def _split_wait_ns(self) -> int:
        return self._waits.ns

    # ---- resuming

    def resume_point(self, count: int) -> ResumePoint:
        """After the units that are finished, and the elements of the next unit that were delivered."""
        position = self._resumable_positions.last_before(count) if self._resumable_positions is not None else None
        given, _, finished = position or (-self._start_point.skip, 0, 0)
        return ResumePoint(skip=count - given, provider=self._context.provider, finished_splits=finished)
