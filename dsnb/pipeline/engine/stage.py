"""Stages, the running form of a pipeline: a worker or an iterator pulls runs of elements from the last one.

Theory of operation. Elements move in *runs*. A pull states the largest number of elements that is wanted (`want`) and
returns between one and that many; an empty run means the end, and every later pull is empty too. The wanted number
travels upstream, so that `take(5)` after a slow `map` never calls the function a sixth time. The consumer at the end of
the chain starts with runs of one element and doubles the length while runs take little time (`AdaptiveRunLength`).
So a slow first element is delivered at once, and the cost of reading the clock is shared by many fast ones.

A run is a list of elements, or a NumPy array whose first axis counts them. Ranges and slices return arrays, so that
elements are only taken apart where an operation looks into them.

An error takes the place of its element: the elements before it are delivered first, then `pull` raises, and the next
`pull` continues with the element after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsnb.errors import CancelledError, is_element_error
from dsnb.pipeline.engine.interrupts import INTERRUPTS
from dsnb.pipeline.engine.resume_point import START, ResumablePositions, ResumePoint
from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH
from dsnb.stopwatch import Stopwatch
from dsnb.wire.messages import StageReport

if TYPE_CHECKING:
    from dsnb.pipeline.splits import SplitCursor

Run = list[Any] | np.ndarray[Any, Any]


class ConsumptionListener(Protocol):
    """Receives from the iterator how many elements the user consumed; implemented by sources."""

    def consumed(self, elements: int, errors: int) -> None:
        """Record that the user received `elements` more elements, and `errors` errors in place of others."""

    def may_consume(self) -> bool:
        """Whether elements delivered but not consumed may still be consumed: False once another client owns them."""
        ...


class Stage:
    """Running form of an operation. Not thread-safe: only one thread may pull at a time.

    Subclasses implement `produce`, and `release` if they own threads or files. Callers use `pull`, which adds counters,
    timing and error handling.
    """

    one_to_one = False
    """Whether each output element corresponds to one input element, in order; then unread ones can be given back."""

    skips_cheaply = False
    """Whether `skip` costs next to nothing and runs no user code."""

    drops_prefix = False
    """Whether it drops elements before its first output, although it is one to one from there on."""

    closes_slowly = False
    """Whether closing may block: on a server, or on a thread that runs user code."""

    @property
    def may_share_memory(self) -> bool:
        """Whether elements may be views of memory that others use too (`BuildContext.copied_later`)."""
        return any(stage.may_share_memory for stage in self.inputs)

    _splits: SplitCursor
    """Only in sources: the splits to read."""

    def __init__(self, name: str, *inputs: Stage) -> None:
        self.name = name
        self.inputs = inputs
        self.elements = 0
        self.wait_ns = 0
        self.stopwatch = Stopwatch()
        """Measures pulls."""
        self._previous_split_wait_ns = 0
        """Time that the sources of earlier iterations waited for splits."""
        self._own_ns = 0
        self._failure: Exception | None = None
        self._cancelled = False
        self._closed = False
        self.delivered = 0
        """Elements delivered since it began, including errors in place of elements."""
        self._had_errors = False
        self._start_point = START
        self._resumable_positions: ResumablePositions | None = None

    def start(self) -> None:
        """Do the slow part of the first pull now: a source that reads from a service joins its job.

        The first pull does this too. Call `start` when the first pull comes later, or when several stages must be ready
        before any of them can deliver, such as two consumers of one coordinated read.
        """
        for stage in self.inputs:
            stage.start()

    def pull(self, want: int) -> Run:
        """Return at least one and at most `want` elements, or an empty run at the end.

        Raises:
            Exception: the error of one element, in its place; the next pull continues after it.
            CancelledError: after `cancel` or `close`, including a call from another thread while this one waits.
        """
        if INTERRUPTS.pending:
            INTERRUPTS.raise_pending()
        if self._cancelled:
            raise CancelledError("reading was stopped")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._note_error(failure)
            raise failure
        self.stopwatch.start()
        try:
            run = self.produce(want)
        except Exception as error:
            self._note_error(error)
            raise
        finally:
            self.stopwatch.stop()
        count = len(run)
        self.elements += count
        self.delivered += count
        return run

    def _note_error(self, error: Exception) -> None:
        if is_element_error(error):
            self.delivered += 1
            self._had_errors = True

    @property
    def spent_ns(self) -> int:
        """Time spent in `pull` so far, including the running one: a function may take minutes."""
        return self.stopwatch.ns

    def produce(self, want: int) -> Run:
        """Do the work of `pull`, without counters and timing."""
        raise NotImplementedError

    def skip(self, count: int) -> int:
        """Drop the next `count` elements as cheaply as possible; user functions run only where they must.

        Elements that fail are dropped like the others.

        Returns:
            How many were dropped: fewer than `count` if the end came first.
        """
        left = count
        while left:
            try:
                dropped = len(self.pull(min(left, MAX_RUN_LENGTH)))
            except Exception as error:
                if not is_element_error(error):
                    raise
                dropped = 1  # the error of a dropped element
            if not dropped:
                break
            left -= dropped
        return count - left

    def note_conversion(self, ns: int, *, to_framework: bool) -> None:
        """Add time that the user's `next` spent on making a framework's objects, or plain NumPy elements.

        Sources that report it count it.
        """
        for stage in self.inputs:
            stage.note_conversion(ns, to_framework=to_framework)

    def shared_with_other_readers(self) -> bool:
        """Whether other clients may have received elements of this iteration, so that a repeated read may differ."""
        return any(stage.shared_with_other_readers() for stage in self.inputs)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """Yield for each input how many of its elements can be dropped once `count` of this stage are consumed.

        The count is what `skip(count)` of a fresh stage would skip in that input, provided that skipping does nothing
        else. A stage that may buffer elements yields 0: it needs its input from the first element.
        """
        return ((stage, 0) for stage in self.inputs)

    def input_index(self, element: int) -> int | None:
        """Return with which element of the only input an element begins, both counted since the stages began.

        None if that depends on the elements, or there are several inputs.
        """
        return None

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """Connect this stage's source to reports of what the user consumes, where counts can be translated.

        Args:
            buffered: Whether later operations buffer elements.

        Returns:
            The listener to call; None if no source needs reports, or an operation buffers elements so that counts do
            not translate.
        """
        return None

    # ---- resuming in another stage

    def resume_point(self, count: int) -> ResumePoint:
        """Where a fresh stage must begin to produce what this one produces after its first `count` elements.

        May be called from any thread, also while another one pulls.
        """
        position = self._resumable_positions.last_before(count) if self._resumable_positions is not None else None
        if position is not None:
            given, taken, at = position
            inputs = (self.inputs[0].resume_point(taken),) if self.inputs else ()
            return ResumePoint(skip=count - given, skip_one_by_one=self._had_errors, counter=at, inputs=inputs)
        begun = self._start_point
        return ResumePoint(
            skip=begun.skip + count,
            skip_one_by_one=begun.skip_one_by_one or self._had_errors,
            counter=begun.counter,
            inputs=begun.inputs or tuple(source.resume_point(0) for source in self.inputs),
            provider=begun.provider,
            repetition=begun.repetition,
        )

    def resume_point_of_inputs(self, count: int, counter: int = 0) -> ResumePoint:
        """Return the resume point of a stage that takes `count` elements of each input for its own and buffers none."""
        return ResumePoint(counter=counter, inputs=tuple(source.resume_point(count) for source in self.inputs))

    def begin_at(self, point: ResumePoint) -> None:
        """Move to `point`; only before the first pull."""
        for source, part in zip(self.inputs, point.inputs, strict=False):
            source.begin_at(part)
        if point.skip:
            # The base's `skip` pulls, and counts an error as one element; a subclass's may not.
            Stage.skip(self, point.skip) if point.skip_one_by_one else self.skip(point.skip)
        # Counts of this stage start here; `resume_point` adds them to the point.
        self._start_point, self.delivered, self._had_errors = point.without_finished_splits(), 0, False
        if self._resumable_positions is not None:
            self._resumable_positions = ResumablePositions()

    def note_resumable_position(self, counter: int = 0, undelivered: int = 0) -> None:
        """Record that this stage buffers nothing now, so that it can resume here; called on the pulling thread.

        Args:
            counter: The stage's own counter (`ResumePoint.counter`).
            undelivered: Elements that the running pull is about to return.
        """
        if self._resumable_positions is not None:
            self._resumable_positions.add(
                self.delivered + undelivered, self.inputs[0].delivered if self.inputs else 0, counter
            )

    def enable_inline_calls(self) -> bool:
        """Call user code on the pulling thread, the cheapest way, and support `take_partial_run`.

        May only be called before the first pull.

        Returns:
            Whether `take_partial_run` is supported. If not, nothing changed.
        """
        return False

    def take_partial_run(self) -> list[Any] | None:
        """Take the elements that the running pull has so far, from another thread; that pull omits them.

        They follow the elements of all finished pulls. None if the running pull makes no calls yet but may start some.
        """
        return []

    def fail_after(self, failure: Exception, run: list[Any]) -> Run:
        """Deliver `run` first and raise `failure` at the next pull; raise at once if the run is empty."""
        if not run:
            raise failure
        self._failure = failure
        return run

    def cancel(self) -> None:
        """Stop reading, from any thread: pulls that run in this stage or its inputs raise `CancelledError`."""
        self._cancelled = True
        for stage in self.inputs:
            stage.cancel()

    def close(self, unread: int = 0) -> None:
        """Close this stage and its inputs; a second call does nothing.

        Another thread may be in `pull`: that pull ends as soon as user code returns.

        Args:
            unread: How many elements of the last run were never read. Counters treat them as never pulled where
                possible.
        """
        if self._closed:
            return
        self._closed = True
        # Threads of the inputs may wait for each other: wake all of them before joining the first.
        self.cancel()
        self.elements -= unread
        try:
            self.release(unread)
        finally:
            self.close_inputs(unread if self.one_to_one else 0)

    def release(self, unread: int) -> None:
        """Release threads, files and streams; called once, before the inputs are closed."""

    def close_inputs(self, unread: int) -> None:
        """Close the inputs; `unread` of their elements were never read."""
        for stage in self.inputs:
            stage.close(unread)

    def adopt(self, stage: Stage) -> None:
        """Cancel or close a stage that was built during a pull, if this one was cancelled or closed meanwhile."""
        if self._cancelled:
            stage.cancel()
        if self._closed:
            stage.close()

    def continue_counters(self, previous: Stage) -> None:
        """Add the counters of the previous iteration's stage, since counters in a report only grow."""
        self.elements += previous.elements
        self.stopwatch.add(previous.spent_ns)
        self.wait_ns += previous.wait_ns
        self._previous_split_wait_ns += previous._split_wait_ns()
        for mine, its in zip(self.inputs, previous.inputs, strict=True):
            mine.continue_counters(its)

    def own_ns(self) -> int:
        """Time spent in this stage itself: its pulls, without those of its inputs and without waiting for splits."""
        elsewhere = sum(stage.spent_ns for stage in self.inputs) + self._split_wait_ns()
        # The clocks are read one after the other, so the difference may shrink; a counter must not.
        self._own_ns = max(self._own_ns, self.spent_ns - elsewhere)
        return self._own_ns

    def _split_wait_ns(self) -> int:
        positions = getattr(self, "_splits", None)
        return self._previous_split_wait_ns + (positions.wait_ns if positions is not None else 0)

    def report(self, depth: int) -> StageReport:
        """Return the counters of this stage."""
        return StageReport(
            name=self.name,
            depth=depth,
            elements=self.elements,
            busy_ns=self.own_ns(),
            wait_ns=self.wait_ns + self._split_wait_ns(),
        )


class AlignedStage(Stage):
    """A stage whose element i is made of element i of its only input; by itself, it passes elements through."""

    one_to_one = True

    buffers = False
    """Whether it may take elements of its input before it can deliver them."""

    def skip(self, count: int) -> int:
        return self.inputs[0].skip(count)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        return ((self.inputs[0], count),)

    def input_index(self, element: int) -> int | None:
        return element

    def resume_point(self, count: int) -> ResumePoint:
        return self.resume_point_of_inputs(count)

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """Consumption of the input equals that of this stage."""
        return self.inputs[0].track_consumption(buffered=buffered or self.buffers)

    def produce(self, want: int) -> Run:
        return self.inputs[0].pull(want)


def reports(stage: Stage, depth: int = 0) -> Iterator[StageReport]:
    """The reports of a stage and all its inputs, the last operation first."""
    yield stage.report(depth)
    for source in stage.inputs:
        yield from reports(source, depth + 1)


def repeated_seconds(stage: Stage, point: ResumePoint) -> float:
    """Estimate the seconds of work that a fresh stage repeats when it begins at a point of this one."""
    seconds = sum(repeated_seconds(source, part) for source, part in zip(stage.inputs, point.inputs, strict=False))
    if point.skip and not stage.skips_cheaply:
        seconds += point.skip * stage.spent_ns / max(1, stage.delivered) / 1e9
    return seconds


def closes_slowly(stage: Stage) -> bool:
    """Whether closing a stage or any of its inputs may block."""
    return stage.closes_slowly or any(map(closes_slowly, stage.inputs))


def concat_runs(runs: Sequence[Run]) -> Run:
    """Join runs: into an array if all are arrays with rows of the same shape and dtype, else into a list."""
    if len(runs) == 1:
        return runs[0]
    arrays = [run for run in runs if isinstance(run, np.ndarray)]
    if len(arrays) == len(runs) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return np.concatenate(arrays)
    return concat_as_list(runs)


def concat_as_list(runs: Iterable[Run]) -> list[Any]:
    """Join runs into a list, without copying arrays."""
    return [element for run in runs for element in as_list(run)]


def as_list(run: Run) -> list[Any]:
    """Return the elements of a run as a list; rows or scalars of an array. Text becomes `str` and `bytes`."""
    if isinstance(run, list):
        return run
    # NumPy's string scalars would be transferred with a different dtype for each length.
    return run.tolist() if run.ndim == 1 and run.dtype.kind in "US" else list(run)
