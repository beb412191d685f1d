"""Calls a user's function for each element of a run.

One `list.extend` over a chain of C iterators makes the calls, so a call costs no more than Python's own call. Results
before an error stay in the list; the error is returned, and the caller continues after it.

Theory of operation of early results. Finished results need not wait for a call that takes long: another thread than the
one that makes the calls may take them (`ThreadedCalls`, `InlineCalls`). It also removes the inputs of calls that have
not begun, so that the run ends with the call in progress and the next wait needs no polling. The number of results
shows how many calls were made; the puller passes the remaining elements to the next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import starmap
from queue import Empty, SimpleQueue
from typing import Any, Final

from dsnb.elements.allocation import Allocator
from dsnb.errors import CancelledError, UserCodeError
from dsnb.pipeline.engine.function_location import add_location_note, add_unpacking_note
from dsnb.pipeline.engine.look_ahead import JOIN_SECONDS, stage_thread_name
from dsnb.pipeline.engine.ownership import all_immutable, ensure_owned, ensure_run_owned
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.system_limits import start_thread
from dsnb.wire import forks

MAX_HOLD_S: Final = 0.003
"""The longest time for which results wait for others of their run."""

Extend = Callable[[list[Any], list[Any]], BaseException | None]
"""Calls user code (a function, or a generator's `next`): appends to the first list one result for each element of the
second, up to the first error, which it returns. The second list may shrink while it runs."""


class UserFunction:
    """A user's function as an operation calls it: tuples unpacked into arguments, other elements whole.

    Args:
        function: The user's function.
        operation: The name of the operation, for notes on errors.
        keep_results: Whether results are kept, and so must be in memory that user code cannot write to
            (`engine/ownership`).
        call: Called for each element instead of `function`, when the function gets more than the element; it calls the
            function.
        allocate: Allocates the memory of results that must be copied.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operation: str,
        *,
        keep_results: bool,
        call: Callable[[Any], Any] | None = None,
        allocate: Allocator | None = None,
    ) -> None:
        self.function = function
        self.operation = operation
        self._call = call
        self._keep_results = keep_results
        self._allocate = allocate
        self._fork_generation = forks.generation()
        self.returns_immutable = not keep_results
        """Whether results need no ownership check, because they are immutable or not kept; set from the last run's
        results."""

    def extend(self, out: list[Any], run: list[Any]) -> BaseException | None:
        """Append the function's result for each element of `run` to `out`, up to the first error.

        Returns:
            The error that ended the calls, or None; `out` has the results before it. A `KeyboardInterrupt` on the main
            thread comes from the user and must be raised at once by the caller; elsewhere it is an error like any
            other.
        """
        began = len(out)
        was_immutable = self.returns_immutable
        try:
            calls = _iterate_calls(self.function, run) if self._call is None else map(self._call, run)
            out.extend(calls if was_immutable else ensure_owned(calls, self._allocate))
        except BaseException as failure:  # noqa: BLE001 - whatever user code raises belongs to its element
            place = len(out) - began
            # Another thread may have cleared `run` meanwhile.
            if self._call is None and isinstance(failure, TypeError) and place < len(run):
                add_unpacking_note(failure, self.operation, self.function, run[place])
            return self.annotate_error(failure)
        finally:
            self.exit_stray_child()
        if len(out) - began < len(run):
            # A StopIteration raised by the function ends `extend` silently; only the count shows it.
            return self._control_flow_error(StopIteration())
        if self._keep_results:
            self._check_immutability(out, began, was_immutable)
        return None

    def exit_stray_child(self) -> None:
        """Exit a child process that the function forked on a thread of dsnb, if it returned in the child too."""
        forks.exit_stranded_child(self._fork_generation)

    def annotate_error(self, failure: BaseException) -> BaseException:
        """Return an error of the function as users see it: with its location, control-flow exceptions wrapped."""
        if isinstance(failure, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            return failure
        if isinstance(failure, StopIteration) or not isinstance(failure, Exception):
            return self._control_flow_error(failure)
        add_location_note(failure, self.operation, self.function)
        return failure

    def _check_immutability(self, out: list[Any], began: int, was_immutable: bool) -> None:
        results = out[began:]
        self.returns_immutable = all_immutable(results)
        if was_immutable and not self.returns_immutable:
            # The first mutable results appeared in this run. Copy them now; from the next run on, each result is
            # checked as it is made.
            out[began:] = ensure_owned(results)

    def _control_flow_error(self, failure: BaseException) -> UserCodeError:
        name = type(failure).__name__
        error = UserCodeError(
            f"the function of {self.operation} raised {name}",
            did="the error replaces this one element; reading continues with the next",
            hint="raise another exception: this one means control flow to Python",
        )
        error.__cause__ = failure
        add_location_note(error, self.operation, self.function)
        return error


def _iterate_calls(function: Callable[..., Any], run: list[Any]) -> Iterator[Any]:
    kinds = set(map(type, run))
    if tuple not in kinds:
        return map(function, run)
    if len(kinds) == 1:
        return starmap(function, run)
    # Not a generator: it would turn a StopIteration of the function into a RuntimeError without a location.
    return map(partial(_call, function), run)


def _call(function: Callable[..., Any], element: Any) -> Any:
    return function(*element) if type(element) is tuple else function(element)


class ThreadedCalls:
    """Runs of calls, one at a time, on a thread that starts with the first run.

    If a run takes longer than a few milliseconds, the puller takes the results that are there. The same thread makes
    all calls of a stage: generators may own objects (a database cursor) that must stay on one thread.

    Args:
        name: The end of the thread's name.
        extend: Makes the calls.
    """

    def __init__(self, name: str, extend: Extend) -> None:
        self._name = name
        self._extend = extend
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._finished: SimpleQueue[bool] = SimpleQueue()
        self._run: list[Any] | None = None
        self._remaining: list[Any] = []
        self._out: list[Any] = []
        self._failure: BaseException | None = None
        self._taken = 0
        self.running = False
        """Whether calls are still being made: the results taken last came before the end of their run."""
        self._cut_short = False
        """Whether inputs of the newest run were removed."""
        self._cancelled = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether no run has results that are still to be taken."""
        return self._run is None

    def start_run(self, run: list[Any]) -> None:
        """Start a run of calls; only when idle."""
        if self._thread is None:
            thread = threading.Thread(target=self._thread_main, name=stage_thread_name(self._name), daemon=True)
            start_thread(thread)
            self._thread = thread
        # A copy of the run: `_wait` shortens it, while `take_results` still needs all elements.
        self._run, self._remaining, self._out, self._taken = run, list(run), [], 0
        self.running, self._cut_short, self._failure = True, False, None
        self._jobs.put(self._run_calls)

    def take_results(self, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        """Wait for results and return at most `want` of them, or the end of the run.

        Returns:
            Elements, the results of those that were called for without an error, and the error of the element after
            those, or None. The elements without a result must be passed to another run.

        Raises:
            CancelledError: `cancel` was called.
        """
        run = self._run
        if run is None:
            raise RuntimeError("no run was begun")
        if self.running:
            self._wait()
        first, last = self._taken, min(self._taken + want, len(self._out))
        self._taken = last
        results = self._out[first:last]
        # Results are only appended, so the slice taken above stays valid while calls are still being made.
        if self.running or last < len(self._out):
            return run[first:last], results, None
        self._run = None
        return run[first:], results, self._failure

    def cancel(self) -> None:
        """Wake all waiting threads, permanently; from any thread."""
        self._cancelled = True
        self._finished.put(False)

    def close(self, then: Callable[[], None] | None = None) -> None:
        """End the thread after it has called `then`; waits at most `JOIN_SECONDS`, because user code may be running."""
        self.cancel()
        if self._thread is None:
            if then is not None:
                then()
            return
        self._remaining.clear()
        if then is not None:
            self._jobs.put(then)
        self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _wait(self) -> None:
        """Wait until the run is over, or has results and takes longer than `MAX_HOLD_S`."""
        try:
            self._finished.get(timeout=None if self._cut_short else MAX_HOLD_S)
        except Empty:
            # Keep the input of the call in progress. If that call ends right now, one or a few more calls are made,
            # which is harmless.
            del self._remaining[len(self._out) + 1 :]
            self._cut_short = True
            if len(self._out) > self._taken:
                return
            self._finished.get()  # nothing to take yet: wait for the call in progress, which is now the last one
        if self._cancelled:
            raise CancelledError("reading was stopped")
        self.running = False

    def _run_calls(self) -> None:
        try:
            self._failure = self._extend(self._out, self._remaining)
        except BaseException as error:  # noqa: BLE001 - the waiting thread must receive it
            self._failure = error
        self._finished.put(True)

    def _thread_main(self) -> None:
        while (work := self._jobs.get()) is not None:
            work()


class InlineCalls:
    """Runs of calls on the pulling thread, one at a time; another thread looks at a run that takes too long.

    This does the same as `ThreadedCalls` without its thread, because waking a thread costs more than most calls. All
    calls are made on the pulling thread, so user code always runs on the same one.

    Args:
        extend: Makes the calls.
    """

    def __init__(self, extend: Extend) -> None:
        self._extend = extend
        self._lock = threading.Lock()
        self._remaining: list[Any] = []
        self._out: list[Any] = []
        self._taken = 0
        self._cancelled = False

    def run_calls(self, run: list[Any]) -> tuple[int, list[Any], BaseException | None]:
        """Make a run of calls. Elements that have no result must be passed to another run.

        Returns:
            How many results were taken while the run was in progress, the results after those, and the error of the
            call after those, or None.

        Raises:
            CancelledError: `cancel` was called.
        """
        left, out = list(run), list[Any]()
        with self._lock:
            self._remaining, self._out, self._taken = left, out, 0
            if self._cancelled:
                raise CancelledError("reading was stopped")
        failure = self._call(out, left)
        # From here on `take_partial_run` finds no run, so the results belong to this thread alone.
        with self._lock:
            self._remaining, self._out, taken = [], [], self._taken
        if self._cancelled:
            raise CancelledError("reading was stopped")
        if taken:
            del out[:taken]
        return taken, out, failure

    def _call(self, out: list[Any], left: list[Any]) -> BaseException | None:
        try:
            return self._extend(out, left)
        except BaseException as error:  # noqa: BLE001 - raised in place of an element, as with a separate thread
            return error

    def take_partial_run(self) -> list[Any] | None:
        """Take the results of the running calls so far, and end the run after the call in progress; from any thread.

        None if no calls are being made.
        """
        with self._lock:
            if not self._remaining:
                return None
            first, self._taken = self._taken, len(self._out)
            # Keep the input of the call in progress. If that call ends right now, one or a few more calls are made,
            # which is harmless.
            del self._remaining[self._taken + 1 :]
            return self._out[first : self._taken]

    def cancel(self) -> None:
        """Start no further call, permanently; from any thread."""
        with self._lock:
            self._cancelled = True
            self._remaining.clear()


class EarlyResultsStage(Stage):
    """A stage that calls user code in runs, and can deliver the first results of a run before the others exist.

    Calls are made on the pulling thread; after `use_thread`, on one of their own; after `enable_inline_calls`, on the
    pulling thread with results that another thread may take.
    """

    results_are_elements = False
    """Whether the results of calls are the elements of this stage."""

    _threaded_calls: ThreadedCalls | None = None
    _inline_calls: InlineCalls | None = None
    _results_unchecked = False
    """Whether results of the run in progress must be checked for mutable ones if they are taken before its end."""

    @property
    def extend(self) -> Extend:
        """Makes calls, as `UserFunction.extend` does."""
        raise NotImplementedError

    @property
    def returns_immutable(self) -> bool:
        """Whether results need no ownership check, as far as is known."""
        raise NotImplementedError

    def next_inputs(self, want: int) -> list[Any]:
        """Return the inputs of the next calls, at most `want`; none at the end."""
        raise NotImplementedError

    def put_back(self, inputs: list[Any]) -> None:
        """Take back inputs whose calls were not made."""
        raise NotImplementedError

    def use_thread(self) -> None:
        """Make the calls on a thread, so that results are delivered at once although other calls take long."""
        self._threaded_calls = ThreadedCalls(self.name, self.extend)

    def enable_inline_calls(self) -> bool:
        if self.results_are_elements:
            self._threaded_calls, self._inline_calls = None, InlineCalls(self.extend)
        return self.results_are_elements

    def take_partial_run(self) -> list[Any] | None:
        out = self._inline_calls.take_partial_run() if self._inline_calls is not None else []
        return ensure_run_owned(out) if out and self._results_unchecked else out

    def call_next(self, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        """Make the next calls, at most `want`.

        Returns:
            The inputs, the results of the first of them, and the error of the input after those, or None. No inputs
            at the end.
        """
        if self._inline_calls is not None:
            return self._call_next_inline(self._inline_calls, want)
        if self._threaded_calls is not None:
            return self._call_next_threaded(self._threaded_calls, want)
        return self._call_run(self.next_inputs(want))

    def _call_run(self, run: list[Any]) -> tuple[list[Any], list[Any], BaseException | None]:
        out: list[Any] = []
        return run, out, self.extend(out, run) if run else None

    def _call_next_threaded(self, calls: ThreadedCalls, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        while True:
            if calls.idle:
                run = self.next_inputs(want)
                if not run:
                    return [], [], None
                # While the run is in progress, `extend` has not yet checked these results for mutable ones.
                self._results_unchecked = self.returns_immutable
                calls.start_run(run)
            run, out, failure = calls.take_results(want)
            if calls.running and self._results_unchecked:
                out = ensure_run_owned(out)
            if failure is not None:
                return run, out, failure
            self.put_back(run[len(out) :])
            if out:
                return run[: len(out)], out, None

    def _call_next_inline(self, calls: InlineCalls, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        while run := self.next_inputs(want):
            if len(run) == 1:  # its one result is only available when the run is over
                return self._call_run(run)
            self._results_unchecked = self.returns_immutable
            taken, out, failure = calls.run_calls(run)
            # Results taken by another thread left this stage without passing through `pull`, which counts the others.
            self.elements += taken
            self.delivered += taken
            run = run[taken:]
            if failure is not None:
                return run, out, failure
            self.put_back(run[len(out) :])
            if out:
                return run[: len(out)], out, None
            want = 1  # another thread took results early, and a finished result must not wait for another call
        return [], [], None

    def cancel(self) -> None:
        super().cancel()
        for calls in (self._threaded_calls, self._inline_calls):
            if calls is not None:
                calls.cancel()

    def release(self, unread: int) -> None:
        """End the calling thread, if there is one, as soon as user code returns."""
        if self._threaded_calls is not None:
            self._threaded_calls.close()


class CallingStage(EarlyResultsStage):
    """A stage that calls a user's function for the elements of its only input.

    After a failing call it keeps the elements that were not called for yet and, if the user interrupted a cell, the
    results that were already there. So nothing is lost when reading continues.

    Args:
        name: The name of the stage.
        source: The input.
        function: The function to call.
        low_latency: Whether results are delivered at once although other calls of their run take long
            (`ThreadedCalls`).
    """

    def __init__(self, name: str, source: Stage, function: UserFunction, *, low_latency: bool = False) -> None:
        super().__init__(name, source)
        self.function = function
        self._pending_inputs: list[Any] = []
        self._leftover_results: list[Any] = []
        if low_latency:
            self.use_thread()

    @property
    def extend(self) -> Extend:
        return self.function.extend

    @property
    def returns_immutable(self) -> bool:
        return self.function.returns_immutable

    @property
    def idle(self) -> bool:
        """Whether nothing is left over from earlier runs."""
        return (
            not self._pending_inputs and not self._leftover_results and self._failure is None and self._calls_finished
        )

    @property
    def _calls_finished(self) -> bool:
        return self._threaded_calls is None or self._threaded_calls.idle

    def next_inputs(self, want: int) -> list[Any]:
        """Return the elements to call the function for, at most `want`; none at the end."""
        if not self._pending_inputs:
            return as_list(self.inputs[0].pull(want))
        run, self._pending_inputs = self._pending_inputs[:want], self._pending_inputs[want:]
        return run

    def put_back(self, inputs: list[Any]) -> None:
        if inputs:
            self._pending_inputs = inputs + self._pending_inputs

    def take_leftover_results(self, want: int) -> list[Any]:
        """Return results that an interrupted run left over."""
        run, self._leftover_results = self._leftover_results[:want], self._leftover_results[want:]
        return run

    def deliver_before(self, out: list[Any], run: list[Any], called: int, failure: BaseException) -> Run:
        """Return `out`, the results before the failed call number `called` of `run`; the error is raised afterwards."""
        if isinstance(failure, Exception):
            self._pending_inputs = run[called + 1 :] + self._pending_inputs
            return self.fail_after(failure, out)
        # An interrupt is not the element's error: call for it again, and keep the results before it.
        self._pending_inputs = run[called:] + self._pending_inputs
        self._leftover_results = out
        raise failure

    def close_inputs(self, unread: int) -> None:
        """Close the input; elements that wait for a call count as unread where input and output correspond."""
        super().close_inputs(unread + len(self._pending_inputs) if self.one_to_one else 0)


class ResultsStage(CallingStage):
    """A stage whose elements are the function's results, one for each input element."""

    one_to_one = True
    results_are_elements = True

    def produce(self, want: int) -> Run:
        if self._leftover_results:
            return self.take_leftover_results(want)
        run, out, failure = self.call_next(want)
        return out if failure is None else self.deliver_before(out, run, len(out), failure)


def call_once(function: UserFunction, element: Any) -> Any:
    """Return the function's result for one element, or raise its error."""
    out: list[Any] = []
    failure = function.extend(out, [element])
    if failure is not None:
        raise failure
    return out[0]


def call_in_segments(function: UserFunction, run: list[Any]) -> list[list[Any] | Exception]:
    """Return the results for a whole run with errors in their places, for threads that deliver finished runs."""
    found: list[list[Any] | Exception] = []
    at = 0
    while at < len(run):
        out: list[Any] = []
        failure = function.extend(out, run[at:] if at else run)
        at += len(out) + 1
        found += [out] if out else []
        if isinstance(failure, Exception):
            found.append(failure)
    return found
