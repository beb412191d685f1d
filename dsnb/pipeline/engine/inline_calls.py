"""Calls user code on the pulling thread, while another thread may take the results that are already there.

Theory of operation. This does the same as `ThreadedCalls` without its thread, because waking a thread costs more than
most calls. The pulling thread makes the calls itself, and another thread may look at a run that takes too long. It
takes the results found there and removes the inputs of calls that have not begun, so that the pull ends with the call
in progress.

All calls are made on the pulling thread, so user code always runs on the same one.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from dsnb.errors import CancelledError
from dsnb.pipeline.engine.threaded_calls import Extend


class InlineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run of calls.

    Attributes:
        taken_count: Calls whose results were taken while the run was in progress.
        results: The results after those.
        failure: The error of the call after those, or None.
        cut_short: Whether results are missing because another thread took some and removed the remaining inputs.
    """

    taken_count: int
    results: list[Any]
    failure: BaseException | None
    cut_short: bool


class InlineCalls:
    """Runs of calls on the pulling thread, one at a time.

    Args:
        extend: Makes the calls, like `call_all` of `ThreadedCalls`.
    """

    def __init__(self, extend: Extend) -> None:
        self._extend = extend
        self._lock = threading.Lock()
        self._remaining: list[Any] = []
        self._out: list[Any] = []
        self._taken = 0
        self._cancelled = False

    def run_calls(self, run: list[Any]) -> InlineResult:
        """Make a run of calls. Elements that have no result must be passed to another run.

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
        return InlineResult(taken_count=taken, results=out, failure=failure, cut_short=len(left) < len(run))

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
