"""A stage is an operation at work: what `Operation.build` makes, what a worker or a loop pulls runs of elements from.

Theory of operation. Work moves in *runs*: whoever wants elements says how many at most (`want`), and gets between one
and that many; an empty run is the end, and stays the end. The wanted count travels upstream, so that `take(5)` behind a
slow `map` never calls the function a sixth time. Whoever stands at the end of the chain begins with runs of one and
doubles them while they stay short (`engine/pace.py`), so a slow first element is not held back, and fast ones cost
their share of one clock read.

A run is a list of elements, or a NumPy array whose first axis counts them (ranges and slices: nothing is taken apart
that nobody looks into).

Errors stand in their element's place: elements before the failing one are delivered first, then `pull` raises, and the
next `pull` goes on with the element after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.errors import CancelledError, is_element_error
from dsnb.pipeline.engine.resume_point import START, ResumablePositions, ResumePoint
from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH

if TYPE_CHECKING:
    from dsnb.pipeline.splits import SplitCursor

Run = list[Any] | np.ndarray[Any, Any]


class ConsumptionListener(Protocol):
    """What a source wants to know of its elements behind the operations of this process."""

    def consumed(self, elements: int, errors: int) -> None:
        """Learn that the user had so many more elements, and errors in the places of others."""

    def may_consume(self) -> bool:
        """Whether what was given and not consumed may still be consumed: it may belong to another reader by now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """What one stage did so far. Counters only grow; rates are the reader's to compute.

    Attributes:
        name: The operation and where its function was written, as in `map(decode)`.
        depth: Distance from the last operation of the pipeline.
        elements: Elements that left this stage.
        busy_ns: Time spent in this stage itself, its inputs' time taken off; summed over its threads.
        wait_ns: Time this stage waited for its inputs on another thread, or a source for splits of the dispatcher.
        buffered: Elements that lie ready in this stage now (prefetch, shuffle, parallel map).
        capacity: The most elements that it holds; 0 where it holds none.
        threads: How many call its function at present; 0 where none were asked for, and the one that pulls does it.
    """

    name: str
    depth: int
    elements: int
    busy_ns: int
    wait_ns: int = 0
    buffered: int = 0
    capacity: int = 0
    threads: int = 0


class Stage:
    """An operation at work. Not thread-safe: one puller at a time.

    Subclasses write `produce`, and where they hold threads or files `release`; they are pulled through `pull`, which
    counts and times.
    """

    one_to_one = False
    """Whether each element out stands for one element in, in order: then unread elements can be given back."""

    skips_cheaply = False
    """Whether `skip` costs next to nothing and runs no user code."""

    drops_prefix = False
    """Whether it leaves elements out before the first one it gives, though it is one to one from there on."""

    closes_slowly = False
    """Whether closing waits for others: a server, a thread that runs user code."""

    @property
    def may_share_memory(self) -> bool:
        """Whether elements may be views of memory that others have too (`BuildContext.copied_later`)."""
        return any(stage.may_share_memory for stage in self.inputs)

    _splits: SplitCursor
    """Only of a source: where its splits come from."""

    def __init__(self, name: str, *inputs: Stage) -> None:
        self.name = name
        self.inputs = inputs
        self.elements = 0
        self.wait_ns = 0
        self._spent: tuple[int, int | None] = (0, None)
        """Time spent in pulls that are over, and when the one began that is not; one object: never half new."""
        self._previous_split_wait_ns = 0
        """By the sources of earlier passes."""
        self._own_ns = 0
        self._failure: Exception | None = None
        self._cancelled = False
        self._closed = False
        self._delivered = 0
        """Elements given since it began, and errors in the places of some."""
        self._had_errors = False
        self._start_point = START
        self._resumable_positions: ResumablePositions | None = None

    def start(self) -> None:
        """Begin what the first pull would have to wait for: a source that reads from a service joins its job.

        Pulling does so too. This is for a reader that comes to its first pull later, and for stages whose inputs need
        each other, such as two consumers of one coordinated read.
        """
        for stage in self.inputs:
            stage.start()

    def pull(self, want: int) -> Run:
        """At least one and at most `want` elements; an empty run at the end.

        Raises:
            Exception: the error of one element, in its place; the next pull goes on behind it.
            CancelledError: after `cancel` or `close`, also when another thread called it while this one waited.
        """
        if self._cancelled:
            raise CancelledError("reading was stopped")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._note_error(failure)
            raise failure
        spent, began = self._spent[0], perf_counter_ns()
        self._spent = spent, began
        try:
            run = self.produce(want)
        except Exception as error:
            self._note_error(error)
            raise
        finally:
            self._spent = spent + perf_counter_ns() - began, None
        self.elements += len(run)
        self._delivered += len(run)
        return run

    def _note_error(self, error: Exception) -> None:
        if is_element_error(error):
            self._delivered += 1
            self._had_errors = True

    @property
    def spent_ns(self) -> int:
        """Time spent in `pull`, in the one that goes on too: a function may take minutes."""
        spent, began = self._spent
        return spent if began is None else spent + perf_counter_ns() - began

    def produce(self, want: int) -> Run:
        """What `pull` promises, without the counting."""
        raise NotImplementedError

    def skip(self, count: int) -> int:
        """Leave the next `count` elements out, as cheaply as can be: functions run only where they must.

        Elements that fail are left out with the others.

        Returns:
            How many there were, if the end came first.
        """
        left = count
        while left:
            try:
                dropped = len(self.pull(min(left, MAX_RUN_LENGTH)))
            except Exception as error:
                if not is_element_error(error):
                    raise
                dropped = 1  # an element that nobody asked for
            if not dropped:
                break
            left -= dropped
        return count - left

    def shared_with_other_readers(self) -> bool:
        """Whether others may have had elements of this pass; a later one may then have some where this had none."""
        return any(stage.shared_with_other_readers() for stage in self.inputs)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """Which elements of its inputs need never be had again, once that holds for the first `count` of its own.

        What `skip(count)` of a fresh stage passes on to its inputs, and does nothing else but that. A stage that may
        hold elements back needs all from the first one.
        """
        return ((stage, 0) for stage in self.inputs)

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """Have the source of this stage learn what the user consumes, while that can be told from what this one gave.

        Args:
            buffered: Whether operations behind this one hold elements for a while.

        Returns:
            What to call; None where nobody wants to know, or an operation holds elements back so that nobody can tell.
        """
        return None

    # ---- where another stage of this kind would go on

    def resume_point(self, count: int) -> ResumePoint:
        """Where a fresh stage begins that gives what this one gave, or will give, after its first `count` elements.

        From any thread, also while this stage is pulled.
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
        """The resume point of a stage that takes `count` elements of each input for its own, and holds no others."""
        return ResumePoint(counter=counter, inputs=tuple(source.resume_point(count) for source in self.inputs))

    def begin_at(self, point: ResumePoint) -> None:
        """Begin there; only before the first pull."""
        for source, part in zip(self.inputs, point.inputs, strict=False):
            source.begin_at(part)
        if point.skip:
            Stage.skip(self, point.skip) if point.skip_one_by_one else self.skip(point.skip)
        self._start_point, self._delivered, self._had_errors = point.without_finished_splits(), 0, False
        if self._resumable_positions is not None:
            self._resumable_positions = ResumablePositions()

    def note_resumable_position(self, counter: int = 0, undelivered: int = 0) -> None:
        """Note that this stage holds nothing at this moment; called on the thread that pulls.

        Args:
            counter: What it counts by itself.
            undelivered: How many elements are about to be given by the pull that goes on.
        """
        if self._resumable_positions is not None:
            self._resumable_positions.add(
                self._delivered + undelivered, self.inputs[0]._delivered if self.inputs else 0, counter
            )

    def enable_inline_calls(self) -> bool:
        """Have user code called on the thread that pulls, which costs least; only before the first pull.

        Returns:
            Whether `early` tells what a pull has so far. If not, nothing has changed.
        """
        return False

    def take_partial_run(self) -> list[Any] | None:
        """Elements that the pull which goes on now has so far; it will not give them again. From another thread.

        They come behind those of all pulls that are over. None while the pull makes no calls: it may begin some.
        """
        return []

    def fail_after(self, failure: Exception, run: list[Any]) -> Run:
        """Deliver `run` first and raise `failure` at the next pull; raise at once if the run is empty."""
        if not run:
            raise failure
        self._failure = failure
        return run

    def cancel(self) -> None:
        """End reading: whoever waits or pulls here or below gets a `CancelledError`; from any thread, at once."""
        self._cancelled = True
        for stage in self.inputs:
            stage.cancel()

    def close(self, unread: int = 0) -> None:
        """End this stage and its inputs; the second call does nothing.

        May be called while another thread is in `pull`: that pull ends as soon as user code lets it.

        Args:
            unread: How many elements of the last run nobody saw. They count as never pulled where that can be told.
        """
        if self._closed:
            return
        self._closed = True
        # Threads below may wait for each other: all are woken before the first one is joined.
        self.cancel()
        self.elements -= unread
        try:
            self.release(unread)
        finally:
            self.close_inputs(unread if self.one_to_one else 0)

    def release(self, unread: int) -> None:
        """Let go of threads, files and streams; called once, before the inputs are closed."""

    def close_inputs(self, unread: int) -> None:
        """Close the inputs, `unread` of whose elements nobody saw."""
        for stage in self.inputs:
            stage.close(unread)

    def adopt(self, stage: Stage) -> None:
        """Let a stage that was built while this one runs share its fate, even if that was sealed meanwhile."""
        if self._cancelled:
            stage.cancel()
        if self._closed:
            stage.close()

    def continue_counters(self, previous: Stage) -> None:
        """Count on from where the stage of the pass before ended: counters of a report only grow."""
        self.elements += previous.elements
        self._spent = self._spent[0] + previous.spent_ns, self._spent[1]
        self.wait_ns += previous.wait_ns
        self._previous_split_wait_ns += previous._split_wait_ns()
        for mine, its in zip(self.inputs, previous.inputs, strict=True):
            mine.continue_counters(its)

    def own_ns(self) -> int:
        """Time spent in this stage itself: all of it less what its inputs, or the splits of a source, took."""
        elsewhere = sum(stage.spent_ns for stage in self.inputs) + self._split_wait_ns()
        # The clock goes on between two looks at it; a counter never goes back.
        self._own_ns = max(self._own_ns, self.spent_ns - elsewhere)
        return self._own_ns

    def _split_wait_ns(self) -> int:
        positions = getattr(self, "_positions", None)
        return self._previous_split_wait_ns + (positions.wait_ns if positions is not None else 0)

    def report(self, depth: int) -> StageReport:
        """What this stage did so far."""
        return StageReport(
            name=self.name,
            depth=depth,
            elements=self.elements,
            busy_ns=self.own_ns(),
            wait_ns=self.wait_ns + self._split_wait_ns(),
        )


def reports(stage: Stage, depth: int = 0) -> Iterator[StageReport]:
    """The reports of a stage and all its inputs, the last operation first."""
    yield stage.report(depth)
    for source in stage.inputs:
        yield from reports(source, depth + 1)


def repeated_seconds(stage: Stage, point: ResumePoint) -> float:
    """About how much work a fresh stage would do again to begin at a point of this one."""
    seconds = sum(repeated_seconds(source, part) for source, part in zip(stage.inputs, point.inputs, strict=False))
    if point.skip and not stage.skips_cheaply:
        seconds += point.skip * stage.spent_ns / max(1, stage._delivered) / 1e9
    return seconds


def closes_slowly(stage: Stage) -> bool:
    """Whether closing a stage or any of its inputs waits for others."""
    return stage.closes_slowly or any(map(closes_slowly, stage.inputs))


def as_list(run: Run) -> list[Any]:
    """The elements of a run as a list; of an array, its rows or scalars. Text comes as `str` and `bytes`."""
    if isinstance(run, list):
        return run
    # NumPy's own string scalars would travel as another dtype for each length.
    return run.tolist() if run.ndim == 1 and run.dtype.kind in "US" else list(run)
