"""One order of elements for any number of workers: the order of the splits; for `Options(deterministic=True)`.

Theory of operation. A DYNAMIC job divides a source into splits, and which worker gets which split depends on timing.
With `Options(deterministic=True)` in the pipeline, the elements come nevertheless in one order, for any number of
workers, and whatever happens to these. Four parts make that so:

* *Units.* A unit is a run of consecutive splits. The dispatcher gives units out in ascending order, each to one task. A
  task asks for units of a size that suits its speed and its elements: where they begin and end has no influence on the
  elements.
* *Elements follow from their split.* Operations that mix splits are refused (`order_obstacle`). A worker runs a new
  pipeline for each unit (`UnitStage`), so no buffer, random generator or counter survives from one unit to the next.
  Draws at random follow from the number of the element in the source. Where an element has none (behind a `filter`, or
  in a dataset that `flat_map` made), they follow from the split, and each split has a pipeline of its own.
* *Marks.* Only the worker knows where units begin and end in its task's sequence: a filter may leave nothing of a unit.
  It sends its reader a mark for each beginning and each end, with the index in the sequence, before any element after
  that place (`wire/unit_mark`). Frames know nothing of units.
* *The reader waits for the unit that is due.* It yields the elements of the unit that begins with split 0, then those
  of the unit that begins where that one ended, and so on (`client/unit_order`). Elements of later units wait in the
  buffer of their task. Each task has a limit of bytes, at which its worker stops: a slow worker delays the others and
  costs no memory. The units of one task ascend, so what it sends first is due first, and the task with the unit that is
  due is never blocked by its own later elements.

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
from dsnb.pipeline.operations.flat_map import FlatMap
from dsnb.pipeline.operations.interleave import Interleave
from dsnb.pipeline.operations.random_map import RandomMap
from dsnb.pipeline.operations.with_options import options_of, with_options_applied
from dsnb.pipeline.splits import shares_exactly, split_providers
from dsnb.stopwatch import Stopwatch

UNIT_S: Final = 0.07
"""About how much work a unit is. The reader waits for the unit that is due while its worker makes it, so it is short.
But each unit costs two or three milliseconds of processor time."""
UNIT_BYTES: Final = 15 << 20
"""About how large the elements of a unit may be in all. Workers that are ahead of the others stop when they have made
`read_ahead_bytes`, 16 MB by default, so a unit should be smaller than that."""

UnitListener = Callable[[tuple[int, int], int, bool], None]
"""Called at the beginning and at the end of a unit, with its first split and the one after its last, how many elements
were made before that moment, and whether it is the end."""


def wants_split_order(operation: Operation) -> bool:
    """Whether a pipeline asks for one order of its elements for any number of workers."""
    return options_of(operation).deterministic is True


def _draws_by_split(operation: Operation) -> bool:
    """Whether something may draw at random for elements that have no number of their own in the source."""
    (provider,) = split_providers(operation)
    numbered = provider.divisible
    for step in walk(operation):  # the source first
        if isinstance(step, FlatMap | Interleave) or (isinstance(step, RandomMap) and not numbered):
            return True
        numbered = numbered and (not step.inputs or step.inputs_per_element > 0)
    return False


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
    """Runs a new pipeline for each unit that its task gets, and tells where in the sequence the units are.

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
        self._context = replace(with_options_applied(operation, context), low_latency=False)
        self._draws_by_split = _draws_by_split(operation)
        self._ranges = context.splits.open(context.provider)
        self._waits = Stopwatch()
        """Measures waiting for splits."""
        self.made = 0
        """Elements made since it was built, errors in place of elements and skipped ones included."""
        self._unit: tuple[int, int] | None = None
        """The unit that is being produced; None between two units."""
        self._next_split = 0
        """The first split of the unit that no pipeline was made for."""
        self._running = False
        """Whether a pipeline was made that has not ended."""
        self._finished_splits = 0
        self._resumable_positions = ResumablePositions()

    def produce(self, want: int) -> Run:
        while self._next_pipeline():
            try:
                run = self.inputs[0].pull(want)
            except Exception as error:
                self.made += is_element_error(error)
                raise
            self.made += len(run)
            if len(run):
                return run
            self._running = False
        return []

    def _next_pipeline(self) -> bool:
        """Go on with the running pipeline, or make one for the next splits; False if there are none."""
        while not self._running:
            if self._unit is None:
                if not self._begin_unit():
                    return False
            elif self._next_split == self._unit[1]:
                self._end_unit()
            else:
                self._make_pipeline(self._unit[1])
        return True

    def _begin_unit(self) -> bool:
        """Begin with the next unit; False if there is none."""
        self._waits.start()
        try:
            self._unit = next(self._ranges, None)
        finally:
            self._waits.stop()
        if self._unit is None:
            return False
        self._next_split = self._unit[0]
        self.on_unit(self._unit, self.made, False)
        return True

    def _make_pipeline(self, end: int) -> None:
        first = self._next_split
        self._next_split = first + 1 if self._draws_by_split else end
        root = (FIXED_SEED << 64) + (first if self._draws_by_split else 0)
        context = replace(self._context, splits=SingleRangeFeed(first, self._next_split), entropy=root)
        previous = self.inputs
        for one in previous:
            one.close()
        try:
            stage = self._operation.build(context)
        except Exception as error:
            self.made += is_element_error(error)
            raise
        for one in previous:
            stage.continue_counters(one)
        self.inputs, self._running = (stage,), True
        self.adopt(stage)

    def _end_unit(self) -> None:
        assert self._unit is not None
        ended, self._unit = self._unit, None
        for stage in self.inputs:
            stage.close()
        self._finished_splits += ended[1] - ended[0]
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
