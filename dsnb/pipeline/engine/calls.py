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

from dsnb.elements.room import Room
from dsnb.errors import UserCodeError
from dsnb.pipeline.engine.beside import CallsBeside
from dsnb.pipeline.engine.in_place import CallsInPlace
from dsnb.pipeline.engine.origin import add_origin
from dsnb.pipeline.engine.ownership import all_immutable, kept, owned
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.wire import forks


class UserFunction:
    """A user's function as an operation calls it: tuples unpacked into arguments, everything else passed whole.

    Args:
        function: What the user gave.
        operation: The name of the operation, for notes on errors.
        keep: Whether results are kept, and so have to be dsnb's own (`engine/ownership`).
        call: What to call for an element where the function gets more than that; it calls the function.
        room: Where results are laid out that have to be copied.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operation: str,
        *,
        keep: bool,
        call: Callable[[Any], Any] | None = None,
        room: Room | None = None,
    ) -> None:
        self.function = function
        self.operation = operation
        self._call = call
        self._keep = keep
        self._room = room
        self._made = forks.generation()
        self.plain = not keep
        """Results that nobody can change need no look at each of them; the first run tells."""

    def extend(self, out: list[Any], run: list[Any]) -> BaseException | None:
        """Append the function's result for each element of `run` to `out`, up to the first error.

        Returns:
            The error that ended it, if one did; the results before it are in `out`. A `KeyboardInterrupt` is the user's
            on the main thread, where it must be raised at once, and an error like any other elsewhere.
        """
        began = len(out)
        plain = self.plain
        try:
            calls = _calls(self.function, run) if self._call is None else map(self._call, run)
            out.extend(calls if plain else owned(calls, self._room))
        except BaseException as failure:  # noqa: BLE001 - whatever user code raises belongs to its element
            return self.explained(failure)
        finally:
            self.end_stranded()
        if len(out) - began < len(run):
            # A StopIteration of the function ends `extend` without a trace.
            return self._control_flow(StopIteration())
        if self._keep:
            self._learn(out, began, plain)
        return None

    def end_stranded(self) -> None:
        """End a child that the function forked in a thread of dsnb's, where it returned in the child too."""
        forks.end_stranded(self._made)

    def explained(self, failure: BaseException) -> BaseException:
        """An error of the function's as it is passed on: its place noted, control flow wrapped."""
        if isinstance(failure, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            return failure
        if isinstance(failure, StopIteration) or not isinstance(failure, Exception):
            return self._control_flow(failure)
        add_origin(failure, self.operation, self.function)
        return failure

    def _learn(self, out: list[Any], began: int, plain: bool) -> None:
        results = out[began:]
        self.plain = all_immutable(results)
        if plain and not self.plain:
            # The function changed its mind within a run; what it hands in from the next run on is looked at at once.
            out[began:] = owned(results)

    def _control_flow(self, failure: BaseException) -> UserCodeError:
        name = type(failure).__name__
        error = UserCodeError(
            f"the function of {self.operation} raised {name}",
            did="it stands for this one element; reading goes on with the next",
            hint="raise another exception: this one means control flow to Python",
        )
        error.__cause__ = failure
        add_origin(error, self.operation, self.function)
        return error


def _calls(function: Callable[..., Any], run: list[Any]) -> Iterator[Any]:
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
        prompt: Whether results are handed on at once although others of their run take long (`engine/beside`).
    """

    def __init__(self, name: str, source: Stage, function: UserFunction, *, prompt: bool = False) -> None:
        super().__init__(name, source)
        self.function = function
        self._waiting: list[Any] = []
        self._done: list[Any] = []
        self._beside = CallsBeside(name, function.extend) if prompt else None
        self._in_place: CallsInPlace | None = None
        self._unguarded = False

    @property
    def idle(self) -> bool:
        """Whether nothing is left over from an earlier run."""
        return not self._waiting and not self._done and self._failure is None and self._settled

    @property
    def _settled(self) -> bool:
        return self._beside is None or self._beside.idle

    def answers(self, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        """Call the function for the next elements of the input, at most `want`.

        Returns:
            The elements, the results for the first of them, and the error of the one behind those, if there was one.
            No elements at the end.
        """
        if self._in_place is not None:
            return self._answers_in_place(self._in_place, want)
        if self._beside is not None:
            return self._answers_beside(self._beside, want)
        run = self.next_inputs(want)
        out: list[Any] = []
        return run, out, self.function.extend(out, run)

    def _answers_beside(self, beside: CallsBeside, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        while True:
            if beside.idle:
                run = self.next_inputs(want)
                if not run:
                    return [], [], None
                self._unguarded = self.function.plain
                beside.begin(run)
            run, out, failure = beside.take(want)
            if beside.going and self._unguarded:
                out = kept(out)
            if failure is not None:
                return run, out, failure
            self._waiting = run[len(out) :] + self._waiting
            if out:
                return run[: len(out)], out, None

    def _answers_in_place(self, calls: CallsInPlace, want: int) -> tuple[list[Any], list[Any], BaseException | None]:
        while run := self.next_inputs(want):
            if len(run) == 1:  # of which nothing can be taken before it is over
                out: list[Any] = []
                return run, out, self.function.extend(out, run)
            self._unguarded = self.function.plain
            made = calls.make(run)
            self.elements += made.taken
            self._delivered += made.taken
            run, out = run[made.taken :], made.out
            if made.failure is not None:
                return run, out, made.failure
            if len(out) < len(run):
                self._waiting = run[len(out) :] + self._waiting
                run = run[: len(out)]
            if out:
                return run, out, None
            want = 1  # somebody looked already, and nothing that is there may wait for another call
        return [], [], None

    def next_inputs(self, want: int) -> list[Any]:
        """The elements to call the function for, at most `want`; none at the end."""
        if not self._waiting:
            return as_list(self.inputs[0].pull(want))
        run, self._waiting = self._waiting[:want], self._waiting[want:]
        return run

    def done_before(self, want: int) -> list[Any]:
        """Results left over from an interrupted run."""
        run, self._done = self._done[:want], self._done[want:]
        return run

    def passed(self, out: list[Any], run: list[Any], called: int, failure: BaseException) -> Run:
        """What to return after the call number `called` of `run` failed and `out` came before it."""
        if isinstance(failure, Exception):
            self._waiting = run[called + 1 :] + self._waiting
            return self.fail_after(failure, out)
        self._waiting = run[called:] + self._waiting
        self._done = out
        raise failure

    def cancel(self) -> None:
        """Wake the reader, though user code may go on."""
        super().cancel()
        for calls in (self._beside, self._in_place):
            if calls is not None:
                calls.cancel()

    def release(self, unread: int) -> None:
        """End the thread, if there is one, as soon as user code lets go of it."""
        if self._beside is not None:
            self._beside.close()

    def close_inputs(self, unread: int) -> None:
        """Elements that wait for a call were never read either, where elements in are elements out."""
        super().close_inputs(unread + len(self._waiting) if self.one_to_one else 0)


class ResultsStage(CallingStage):
    """A stage whose elements are the function's results."""

    one_to_one = True

    def produce(self, want: int) -> Run:
        """The results for the next elements of the input."""
        if self._done:
            return self.done_before(want)
        run, out, failure = self.answers(want)
        return out if failure is None else self.passed(out, run, len(out), failure)

    def call_in_place(self) -> bool:
        """It does."""
        self._beside, self._in_place = None, CallsInPlace(self.function.extend)
        return True

    def early(self) -> list[Any] | None:
        """The results so far."""
        out = self._in_place.take() if self._in_place is not None else []
        return kept(out) if out and self._unguarded else out


def call_once(function: UserFunction, element: Any) -> Any:
    """The function's result for one element; raises its error."""
    out: list[Any] = []
    failure = function.extend(out, [element])
    if failure is not None:
        raise failure
    return out[0]


def segments(function: UserFunction, run: list[Any]) -> list[list[Any] | Exception]:
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


def chain_runs(runs: Iterable[Run]) -> list[Any]:
    """Several runs as one list."""
    return [element for run in runs for element in as_list(run)]
