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

from dsnb.errors import CancelledError
from dsnb.pipeline.engine.threaded_calls import Extend


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
