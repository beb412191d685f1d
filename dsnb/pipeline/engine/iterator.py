"""The iterator that `iter(dataset)` returns: yields elements one by one from runs, at minimal cost per element."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from operator import length_hint
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final, Self

from dsnb.arguments import anything, checked
from dsnb.code.tracebacks import clean_for_user
from dsnb.errors import FailedPreconditionError, UnimplementedError, is_element_error
from dsnb.frameworks.placement import Placement
from dsnb.pipeline.engine.interrupts import INTERRUPTS
from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH, AdaptiveRunLength
from dsnb.pipeline.engine.stage import ConsumptionListener, Run, Stage, closes_slowly, reports
from dsnb.pipeline.engine.to_device import ArrivedElements
from dsnb.pipeline.engine.to_numpy import Converter, NumpyConverter
from dsnb.pipeline.position import DatasetIteration, IteratorPosition
from dsnb.pipeline.seen_specs import note_element
from dsnb.system_limits import limit_error
from dsnb.wire import forks
from dsnb.wire.messages import StageReport

_CLOSE_SECONDS: Final = 1.0
_SLOW_LOOP_NS: Final = 10_000
"""If the user's loop takes at least this long for an element, reporting each one as consumed costs little."""
_MAX_UNREPORTED_NS: Final = 1_000_000
"""The longest time for which a faster loop may leave consumed elements unreported."""
_SHORT_RUN: Final = 8
"""Runs of at most this many elements are reported one by one to any loop: pulling such a run costs more than that."""


class ElementIterator(Iterator[Any]):
    """Iterates over the elements of one epoch.

    Nothing happens before the first `next` or `start()`: only then does a dataset that is read from a service join its
    job, so an iterator that is never read costs nothing. The error of one element takes its place: `next` raises it,
    and the following `next` continues with the element after it. The iterator closes at its end, on `close()`, at the
    end of its `with` block, and when it is garbage-collected.

    Args:
        stage: An existing pipeline, if any; the iterator closes it.
        max_run_length: The longest run to pull at once.
        writable: Whether elements are copies that the user may write to.
        iteration: Builds the pipeline, and can start the same iteration again for reading positions.

    Example:
        >>> import dsnb
        >>> with iter(dsnb.Dataset.range(3)) as elements:
        ...     print(next(elements))
        0
    """

    __slots__ = ("__weakref__", "_finalizer", "_iteration", "_lock", "_run", "_state")

    def __init__(
        self,
        stage: Stage | None = None,
        max_run_length: int = MAX_RUN_LENGTH,
        *,
        writable: bool = False,
        iteration: DatasetIteration | None = None,
    ) -> None:
        placement = iteration.placement if iteration is not None else None
        on_device = placement is not None and placement.on_device
        converter: Converter = (
            ArrivedElements(placement)
            if placement is not None and on_device
            else NumpyConverter(writable=writable, placement=placement)
        )
        self._state = _IteratorState(stage, max_run_length, converter, placement)
        if iteration is not None and placement is None:
            self._state.on_first_element = partial(note_element, iteration.operation)
        self._iteration = iteration
        self._run: Iterator[Any] = iter(())
        self._lock = threading.RLock()
        self._finalizer = weakref.finalize(self, self._state.drop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            while True:
                for element in self._run:
                    return element
                if not self._refill():
                    break
        except BaseException as error:
            __tracebackhide__ = True  # IPython and pytest hide this frame
            # A stored traceback (a notebook keeps the last one) must not keep the iterator alive and open.
            del self
            # A user function's own error stays as it is.
            limit = None if hasattr(error, "__notes__") else limit_error(error)
            if limit is not None:
                raise limit from error
            clean_for_user(error)
            raise
        raise StopIteration

    def _refill(self) -> bool:
        """Pull the next run; return whether there is one. It returns no element, because an interrupt could drop it."""
        try:
            with self._lock, INTERRUPTS:
                if length_hint(self._run):  # another thread refilled it first
                    return True
                if not self._finalizer.alive:
                    return False
                if not self._state.begun:
                    self._begin()
                again = True
                while again:
                    self._run = self._state.next_run()
                    if length_hint(self._run):
                        return True
                    again = self._state.forget_withdrawn()
                self._state.ended = True
                self._finish()
                return False
        except BaseException:
            del self
            raise

    @checked()
    def start(self) -> Self:
        """Begin before the first `next`: join the job, so that workers produce while this process does other things.

        A second call does nothing, nor does a call after the end.

        Returns:
            The iterator.

        Raises:
            DsnbError: what the first `next` would raise, for example if the service does not answer or the job has
                other parameters. The next `next` tries again.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1) as svc:
            ...     squares = dsnb.Dataset.range(3).map(lambda x: x * x)
            ...     elements = iter(squares.apply(dsnb.distribute("parallel_epochs", svc))).start()
            ...     [int(element) for element in elements]  # the worker has begun meanwhile
            [0, 1, 4]
        """
        with self._lock:
            if self._finalizer.alive and not self._state.begun:
                self._begin()
        return self

    def _begin(self) -> None:
        self._state.refuse_inherited()
        stage, position = self._pipeline_stage(), self._state.position
        stage.start()
        if position.yielded:
            self._seek(stage, position)
        self._state.begun, self._state.loaded_state = True, None

    def _pipeline_stage(self) -> Stage:
        """Return the pipeline; build it first if necessary."""
        if self._state.stage is None:
            self._iteration = self._require_iteration().numbered()
            self._state.set_stage(self._iteration.build())
        assert self._state.stage is not None
        return self._state.stage

    def _seek(self, stage: Stage, position: IteratorPosition) -> None:
        try:
            self._require_iteration().seek(stage, position)
        except BaseException:
            # It is unknown how much was skipped before the error, so the next attempt builds a fresh pipeline.
            self._state.stage = None
            stage.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the iterator has ended or was closed."""
        return not self._finalizer.alive

    @checked()
    def state_dict(self) -> dict[str, Any]:
        """Return the reading position: what is needed to continue after the last element, also in another process.

        Before the first `next` it is the start of the epoch. Taking it joins no job.

        Returns:
            Plain data of text, numbers, lists and dicts, for JSON or pickle; a few hundred bytes for most pipelines.

        Raises:
            FailedPreconditionError: the pipeline cannot be repeated exactly, with the name of the operation; or the
                iterator was closed before its end.
            UnavailableError: the service that is read from does not answer.

        Example:
            >>> import dsnb
            >>> ds = dsnb.Dataset.range(5).shuffle(5)
            >>> elements = iter(ds)
            >>> first, state = next(elements), elements.state_dict()
            >>> again = iter(ds)
            >>> again.load_state_dict(state)
            >>> list(again) == list(elements)
            True
        """
        with self._lock:
            position = self._state.position
            if self.closed and not position.ended:
                raise FailedPreconditionError(
                    "the iterator was closed, so its reading position is gone",
                    hint="take state_dict() first, then close it",
                )
            if self._state.loaded_state is not None:  # nothing was read since it was loaded; the user gets a copy
                return deepcopy(self._state.loaded_state)
            stage = self._state.stage if position.ended else self._pipeline_stage()
            return self._require_iteration().state(stage, position)

    @checked(state=anything)
    def load_state_dict(self, state: Any) -> None:
        """Go to a reading position that `state_dict` returned, in this or another process, for this pipeline.

        The next `next` or `start()` moves there. Sources that can jump (ranges, slices, recordings, and shuffles of
        them) do so; other pipelines run again up to the position. The next loop over the dataset is the epoch after it.

        Args:
            state: The position. If it is refused, the iterator stays where it is.

        Raises:
            InvalidArgumentError: `state` is not a position, or belongs to another pipeline; the message names the first
                operation that differs.
            FailedPreconditionError: another version of dsnb wrote it. If the service cannot continue there, the next
                `next` raises instead.

        Example:
            >>> import dsnb
            >>> elements = iter(dsnb.Dataset.range(5))
            >>> elements.load_state_dict({})
            Traceback (most recent call last):
            dsnb.errors.InvalidArgumentError: `state` is no reading position of dsnb: a dict with nothing
            ...
        """
        with self._lock:
            self._state.refuse_inherited()
            iteration, position = self._require_iteration().load_state(state)
            stage = None if position.ended else iteration.build()
            iteration.make_current()
            self._finish()
            self._run = iter(())
            self._iteration, self._state = iteration, self._state.at_position(position, stage)
            if not position.ended:
                self._state.loaded_state = deepcopy(state)
                self._finalizer = weakref.finalize(self, self._state.drop)

    def _require_iteration(self) -> DatasetIteration:
        if self._iteration is None:
            raise UnimplementedError("this iterator is of no dataset, so it has no reading position")
        return self._iteration

    @checked()
    def close(self) -> None:
        """Stop reading and release threads and files; then `next` raises StopIteration. A second call does nothing."""
        if self._state.inherited:
            return
        self._state.cancel()
        # Another thread may hold the lock while it reads; `cancel` makes it return as soon as user code does.
        locked = self._lock.acquire(timeout=_CLOSE_SECONDS)
        try:
            self._finish()
            self._run = iter(())
        finally:
            if locked:
                self._lock.release()

    def _finish(self) -> None:
        if self._finalizer.detach() is not None:
            self._state.close()

    def reports(self) -> tuple[StageReport, ...]:
        """Return the counters of each operation, the last operation first."""
        stage = self._state.stage
        return () if stage is None else tuple(reports(stage))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _IteratorState:
    """The part of an iterator that its finalizer needs: pipeline and pulled elements, but not the iterator."""

    def __init__(
        self, stage: Stage | None, max_run_length: int, converter: Converter, placement: Placement | None = None
    ) -> None:
        self.stage = stage
        self.begun = False
        """Whether the pipeline was started and has reached its start position."""
        self.loaded_state: dict[str, Any] | None = None
        """The loaded position at which it begins; None after the first read."""
        self._closed = False
        self._fork_generation = forks.generation()
        self._run_length = AdaptiveRunLength(max_run_length)
        self._converter = converter
        self._placement = placement
        self._copy_clock = placement.clock if placement is not None and placement.on_device else None
        self.on_first_element: Callable[[Any], None] | None = None
        """Called once, with the first element that is delivered."""
        self._run: Iterator[Any] = iter(())
        self._unconverted: Run = []
        self._failure: Exception | None = None
        self._pulled = 0
        self._had_errors = False
        self.ended = False
        self._reporter = _ConsumptionReporter()

    def set_stage(self, stage: Stage) -> None:
        """Set the pipeline; close it at once if the iterator was closed meanwhile."""
        self.stage = stage
        if self._closed:
            stage.close()

    def at_position(self, position: IteratorPosition, stage: Stage | None) -> _IteratorState:
        """Return a fresh state with the same settings, at `position`."""
        converter = self._converter.fresh_copy()
        source = _IteratorState(stage, self._run_length.maximum, converter, self._placement)
        source._pulled, source._had_errors, source.ended = position.yielded, position.failed, position.ended
        return source

    @property
    def position(self) -> IteratorPosition:
        """How far the user has read: what was pulled, less what was not yielded."""
        held = length_hint(self._run) + len(self._unconverted) + (self._failure is not None)
        return IteratorPosition(yielded=self._pulled - held, failed=self._had_errors, ended=self.ended)

    def refuse_inherited(self) -> None:
        """Refuse to work in a child process that inherited the iterator by `fork`.

        Raises:
            FailedPreconditionError: the iterator was inherited.
        """
        if self.inherited:
            raise forks.inherited_error("this iterator cannot be read here")

    @property
    def inherited(self) -> bool:
        """Whether this process inherited the iterator by a fork."""
        return forks.forked_since(self._fork_generation)

    def next_run(self) -> Iterator[Any]:
        """Return an iterator over the next elements; an exhausted one at the end.

        Raises:
            FailedPreconditionError: this process inherited the iterator by a fork.
        """
        if self._copy_clock is None:
            return self._next_run()
        before = self._copy_clock.ns
        run = self._next_run()
        if self.stage is not None:
            self.stage.note_conversion(self._copy_clock.ns - before, to_framework=True)
        return run

    def _next_run(self) -> Iterator[Any]:
        self.refuse_inherited()
        # The user asked for more, so all elements of the last run are consumed.
        self._reporter.finish_run()
        self.forget_withdrawn()
        self._raise_failure()
        if not len(self._unconverted):
            began = perf_counter_ns()
            self._unconverted = self._pull()
            self._run_length.note(perf_counter_ns() - began)
            if not len(self._unconverted):
                return iter(())
        elements = self._convert()
        if not elements:
            self._raise_failure()
        if self.on_first_element is not None and elements:
            self.on_first_element(elements[0])
            self.on_first_element = None
        self._run = self._reporter.hand_out(elements)
        return self._run

    def _convert(self) -> list[Any]:
        """Convert what was pulled; if Ctrl-C interrupts a framework's code, the next call converts it again."""
        began = perf_counter_ns()
        try:
            elements, self._failure, self._unconverted = self._converter.convert(self._unconverted)
        except Exception:
            self._unconverted = []
            raise
        if self._copy_clock is None and self.stage is not None:
            self.stage.note_conversion(perf_counter_ns() - began, to_framework=self._placement is not None)
        return elements

    def forget_withdrawn(self) -> bool:
        """Drop pulled elements that now belong to other clients, and return whether there were any."""
        left, self._reporter.withdrawn = self._reporter.withdrawn, 0
        if left:
            self._pulled -= left + len(self._unconverted) + (self._failure is not None)
            self._unconverted, self._failure = [], None
        return left > 0

    def _pull(self) -> Run:
        assert self.stage is not None, "the pipeline was not built"
        self._reporter.start(self.stage)
        try:
            run = self.stage.pull(min(self._run_length.want, self._reporter.max_run_length))
        except Exception as error:
            if is_element_error(error):
                self._pulled += 1
                self._had_errors = True
                self._reporter.report_error()
            raise
        self._pulled += len(run)
        return run

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._reporter.report_error()
            raise failure

    def cancel(self) -> None:
        """Wake the reading thread; every later read fails."""
        self._closed = True
        stage = self.stage
        if stage is not None:
            stage.cancel()

    def close(self) -> None:
        """Close the pipeline, and pass it the number of elements that were never yielded."""
        if self.inherited:  # its threads, and the events they wait for, exist only in the parent
            return
        self._closed = True
        self._reporter.finish_run(length_hint(self._run))
        stage = self.stage
        if stage is not None:
            stage.close(length_hint(self._run) + len(self._unconverted))

    def drop(self) -> None:
        """Close the pipeline of an iterator that was garbage-collected, without blocking.

        Garbage collection may happen at any moment, in any thread, under any lock.
        """
        if self.stage is None:
            return
        if self.inherited:
            _inherited_states.append(self)
            return
        self.cancel()
        if not closes_slowly(self.stage):
            self.close()
            return
        try:
            threading.Thread(target=self.close, name="dsnb-close", daemon=True).start()
        except RuntimeError:  # Python is shutting down and starts no more threads
            self.close()


class _ConsumptionReporter:
    """Reports to the source of a pipeline which elements the user consumed, if the source needs to know.

    A service gives what one client did not consume to another one, so it needs the exact count. Reporting one element
    costs up to some microseconds. So single elements are reported only for short runs, and for loops that take at
    least `_SLOW_LOOP_NS` for each element. Faster loops report whole runs, whose length is limited so that a run lasts
    at most `_MAX_UNREPORTED_NS`.
    """

    def __init__(self) -> None:
        self._listener: ConsumptionListener | None = None
        self._asked = False
        self._handed_out = 0
        self._handed_out_at_ns = 0
        self.reporting_ns = 0
        """How long it took to report single elements of the last run."""
        self._slow_loop = True
        self._reports_each = True
        self.max_run_length = MAX_RUN_LENGTH
        """The longest run to pull."""
        self.lock = threading.RLock()
        """Held while an element is reported and handed out, for several threads may take elements."""
        self.withdrawn = 0
        """Elements of the last run that are withheld from the user, because they belong to other clients now."""

    def start(self, stage: Stage) -> None:
        """Get the pipeline's listener, if it has one, before the first pull."""
        if not self._asked:
            self._asked, self._listener = True, stage.track_consumption()

    def hand_out(self, elements: list[Any]) -> Iterator[Any]:
        """Return an iterator over elements that the user is about to consume."""
        if self._listener is None:
            return iter(elements)
        self._handed_out, self._handed_out_at_ns, self.reporting_ns = len(elements), perf_counter_ns(), 0
        self._reports_each = self._slow_loop or len(elements) <= _SHORT_RUN
        return _ReportedElements(elements, self._listener, self) if self._reports_each else iter(elements)

    def finish_run(self, unread: int = 0) -> None:
        """Report the run that was handed out, except its last `unread` elements, and adapt to the loop's speed."""
        count, self._handed_out = self._handed_out - unread, 0
        if self._listener is None or count <= 0:
            return
        # Without the time of the reports: they take longer than a fast loop, which would then seem slow for ever.
        each_ns = (perf_counter_ns() - self._handed_out_at_ns - self.reporting_ns) // count
        if not self._reports_each:
            self._listener.consumed(count, 0)
        self._slow_loop = each_ns >= _SLOW_LOOP_NS
        self.max_run_length = (
            MAX_RUN_LENGTH if self._slow_loop else max(1, min(MAX_RUN_LENGTH, _MAX_UNREPORTED_NS // max(1, each_ns)))
        )

    def report_error(self) -> None:
        """Report that the user received an error in place of an element."""
        if self._listener is not None:
            self._listener.consumed(0, 1)


class _ReportedElements(Iterator[Any]):
    """Yields elements and reports each one as consumed when it is yielded."""

    __slots__ = ("_elements", "_listener", "_lock", "_next", "_reporter", "_unyielded")

    def __init__(self, elements: list[Any], listener: ConsumptionListener, reporter: _ConsumptionReporter) -> None:
        self._elements = elements
        self._next = 0
        self._unyielded: list[Any] = []
        """What was reported and not yielded, because an interrupt came in between."""
        self._listener = listener
        self._reporter = reporter
        self._lock = reporter.lock

    def __next__(self) -> Any:
        began = perf_counter_ns()
        with self._lock:
            if not self._elements and not self._unyielded:
                raise StopIteration
        found: list[Any] = []
        try:
            with INTERRUPTS, self._lock:
                kept, self._unyielded = self._unyielded, []
                found += kept or self._report_next()
            self._reporter.reporting_ns += perf_counter_ns() - began
        except BaseException:
            if found:
                self._unyielded = found
            raise
        for element in found:  # Python runs no signal handler between this line and the next
            return element
        raise StopIteration

    def _report_next(self) -> list[Any]:
        """Report the next element and return it in a list, which is empty at the end."""
        if self._listener.may_consume():
            found = self._elements[self._next : self._next + 1]
            if found:
                self._listener.consumed(1, 0)
                self._next += 1
        else:
            # Another client gets these elements now: yielding them here too would deliver them twice.
            found = []
            self._reporter.withdrawn += len(self._elements) - self._next
            self._next = len(self._elements)
        if self._next == len(self._elements):
            self._elements, self._next = [], 0  # they may be views of shared memory
        return found

    def __length_hint__(self) -> int:
        return len(self._elements) - self._next + len(self._unyielded)


_inherited_states: list[_IteratorState] = []
"""States of inherited iterators that were dropped in the child. They stay referenced, because destroying them may
hang."""
