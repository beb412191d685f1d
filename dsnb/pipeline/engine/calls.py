"""Calling a user's function for each element of a run.

One `list.extend` over a chain of C iterators makes the calls, so that a call costs what Python's own call costs. What
came before an error stays in the list; the error is returned and the caller goes on behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import starmap
from typing import Any

from dsnb.elements.allocation import Allocator
from dsnb.errors import UserCodeError
from dsnb.pipeline.engine.beside import ThreadedCalls
from dsnb.pipeline.engine.function_location import add_location_note
from dsnb.pipeline.engine.in_place import InlineCalls
from dsnb.pipeline.engine.ownership import all_immutable, ensure_owned, ensure_run_owned
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.wire import forks


class UserFunction:
    """A user's function as an operation calls it: tuples unpacked into arguments, everything else passed whole.

    Args:
        function: What the user gave.
        operation: The name of the operation, for notes on errors.
        keep_results: Whether results are kept, and so have to be dsnb's own (`engine/ownership`).
        call: What to call for an element where the function gets more than that; it calls the function.
        allocate: Where results are laid out that have to be copied.
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
        """Results that nobody can change need no look at each of them; the first run tells."""

    def extend(self, out: list[Any], run: list[Any]) -> BaseException | None:
        """Append the function's result for each element of `run` to `out`, up to the first error.

        Returns:
            The error that ended it, if one did; the results before it are in `out`. A `KeyboardInterrupt` is the user's
            on the main thread, where it must be raised at once, and an error like any other elsewhere.
        """
        began = len(out)
        was_immutable = self.returns_immutable
        try:
            calls = _iterate_calls(self.function, run) if self._call is None else map(self._call, run)
            out.extend(calls if was_immutable else ensure_owned(calls, self._allocate))
        except BaseException as failure:  # noqa: BLE001 - whatever user code raises belongs to its element
            return self.annotate_error(failure)
        finally:
            self.exit_stray_child()
        if len(out) - began < len(run):
            # A StopIteration of the function ends `extend` without a trace.
            return self._control_flow_error(StopIteration())
        if self._keep_results:
            self._check_immutability(out, began, was_immutable)
        return None

    def exit_stray_child(self) -> None:
        """End a child that the function forked in a thread of dsnb's, where it returned in the child too."""
        forks.exit_stranded_child(self._fork_generation)

    def annotate_error(self, failure: BaseException) -> BaseException:
        """An error of the function's as it is passed on: its place noted, control flow wrapped."""
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
            # The function changed its mind within a run; what it hands in from the next run on is looked at at once.
            out[began:] = ensure_owned(results)

    def _control_flow_error(self, failure: BaseException) -> UserCodeError:
        name = type(failure).__name__
        error = UserCodeError(
            f"the function of {self.operation} raised {name}",
            did="it stands for this one element; reading goes on with the next",
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
    # Not a generator: that would turn a StopIteration of the function into a RuntimeError without a place.
    return map(partial(_call, function), run)


def _call(function: Callable[..., Any], element: Any) -> Any:
    return function(*element) if type(element) is tuple else function(element)


class CallingStage(Stage):
    """A stage that calls a user's function for the elements of its one input.

    Keeps what a failing call leaves over: elements not yet called for, and, when the user interrupted a cell, results
    that were there already. So nothing is lost when reading goes on.

    Args:
        name: Of the stage.
        source: Its input.
        function: What to call.
        low_latency: Whether results are handed on at once although others of their run take long (`engine/beside`).
    """

    def __init__(self, name: str, source: Stage, function: UserFunction, *, low_latency: bool = False) -> None:
        super().__init__(name, source)
        self.function = function
        self._pending_inputs: list[Any] = []
        self._leftover_results: list[Any] = []
        self._threaded_calls = ThreadedCalls(name, function.extend) if low_latency else None
        self._inline_calls: InlineCalls | None = None
        self._results_unchecked = False

    @property
    def idle(self) -> bool:
        """Whether nothing is left over from an earlier run."""
        return (
            not self._pending_inputs and not self._leftover_results and self._failure is None and self._calls_finished
        )

    @property
    def _calls_finished(self) -> bool:
        return self._threaded_calls is None or self._threaded_calls.idle

    def call_next(self, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        """Call the function for the next elements of the input, at most `want`.

        Returns:
            The elements, the results for the first of them, and the error of the one behind those, if there was one.
            No elements at the end.
        """
        if self._inline_calls is not None:
            return self._call_next_inline(self._inline_calls, want)
        if self._threaded_calls is not None:
            return self._call_next_threaded(self._threaded_calls, want)
        run = self.next_inputs(want)
        out: list[Any] = []
        return run, out, self.function.extend(out, run)

    def _call_next_threaded(self, calls: ThreadedCalls, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        while True:
            if calls.idle:
                run = self.next_inputs(want)
                if not run:
                    return [], [], None
                self._results_unchecked = self.function.returns_immutable
                calls.start_run(run)
            run, out, failure = calls.take_results(want)
            if calls.running and self._results_unchecked:
                out = ensure_run_owned(out)
            if failure is not None:
                return run, out, failure
            self._pending_inputs = run[len(out) :] + self._pending_inputs
            if out:
                return run[: len(out)], out, None

    def _call_next_inline(self, calls: InlineCalls, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        while run := self.next_inputs(want):
            if len(run) == 1:  # of which nothing can be taken before it is over
                out: list[Any] = []
                return run, out, self.function.extend(out, run)
            self._results_unchecked = self.function.returns_immutable
            result = calls.run_calls(run)
            self.elements += result.taken_count
            self._delivered += result.taken_count
            run, out = run[result.taken_count :], result.results
            if result.failure is not None:
                return run, out, result.failure
            if len(out) < len(run):
                self._pending_inputs = run[len(out) :] + self._pending_inputs
                run = run[: len(out)]
            if out:
                return run, out, None
            want = 1  # somebody looked already, and nothing that is there may wait for another call
        return [], [], None

    def next_inputs(self, want: int) -> list[Any]:
        """The elements to call the function for, at most `want`; none at the end."""
        if not self._pending_inputs:
            return as_list(self.inputs[0].pull(want))
        run, self._pending_inputs = self._pending_inputs[:want], self._pending_inputs[want:]
        return run

    def take_leftover_results(self, want: int) -> list[Any]:
        """Results left over from an interrupted run."""
        run, self._leftover_results = self._leftover_results[:want], self._leftover_results[want:]
        return run

    def deliver_before(self, out: list[Any], run: list[Any], called: int, failure: BaseException) -> Run:
        """What to return after the call number `called` of `run` failed and `out` came before it."""
        if isinstance(failure, Exception):
            self._pending_inputs = run[called + 1 :] + self._pending_inputs
            return self.fail_after(failure, out)
        self._pending_inputs = run[called:] + self._pending_inputs
        self._leftover_results = out
        raise failure

    def cancel(self) -> None:
        """Wake the reader, though user code may go on."""
        super().cancel()
        for calls in (self._threaded_calls, self._inline_calls):
            if calls is not None:
                calls.cancel()

    def release(self, unread: int) -> None:
        """End the thread, if there is one, as soon as user code lets go of it."""
        if self._threaded_calls is not None:
            self._threaded_calls.close()

    def close_inputs(self, unread: int) -> None:
        """Elements that wait for a call were never read either, where elements in are elements out."""
        super().close_inputs(unread + len(self._pending_inputs) if self.one_to_one else 0)


class ResultsStage(CallingStage):
    """A stage whose elements are the function's results."""

    one_to_one = True

    def produce(self, want: int) -> Run:
        """The results for the next elements of the input."""
        if self._leftover_results:
            return self.take_leftover_results(want)
        run, out, failure = self.call_next(want)
        return out if failure is None else self.deliver_before(out, run, len(out), failure)

    def enable_inline_calls(self) -> bool:
        """It does."""
        self._threaded_calls, self._inline_calls = None, InlineCalls(self.function.extend)
        return True

    def take_partial_run(self) -> list[Any] | None:
        """The results so far."""
        out = self._inline_calls.take_partial_run() if self._inline_calls is not None else []
        return ensure_run_owned(out) if out and self._results_unchecked else out


def call_once(function: UserFunction, element: Any) -> Any:
    """The function's result for one element; raises its error."""
    out: list[Any] = []
    failure = function.extend(out, [element])
    if failure is not None:
        raise failure
    return out[0]


def call_in_segments(function: UserFunction, run: list[Any]) -> list[list[Any] | Exception]:
    """The results for a whole run with errors in their places, for threads that hand over finished runs."""
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


def concat_as_list(runs: Iterable[Run]) -> list[Any]:
    """Several runs as one list."""
    return [element for run in runs for element in as_list(run)]
