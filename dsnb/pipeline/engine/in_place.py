"""Calling user code on the thread that pulls, while another thread may take what is there already.

Theory of operation. The way of `engine/beside`, without its thread: to wake a thread costs more than most calls. So
whoever pulls makes the calls itself, and a run that goes on too long can be looked at from outside. What is found there
is taken, and the calls that have not begun are cut off, so that the pull ends with the call that is being made.

All calls are made on the thread that pulls, and so on one.
"""

from __future__ import annotations

import threading
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.errors import CancelledError
from dsnb.pipeline.engine.beside import Extend


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineResult:
    """What came of a run of calls.

    Attributes:
        taken_count: Calls whose results were taken while it went on.
        results: The results behind those.
        failure: The error of the call behind those, if there was one.
        cut_short: Whether there are fewer results because somebody took some.
    """

    taken_count: int
    results: list[Any]
    failure: BaseException | None
    cut_short: bool


class InlineCalls:
    """Runs of calls, one at a time.

    Args:
        extend: As of `ThreadedCalls`.
    """

    def __init__(self, extend: Extend) -> None:
        self._extend = extend
        self._lock = threading.Lock()
        self._remaining: list[Any] = []
        self._out: list[Any] = []
        self._taken = 0
        self._cancelled = False

    def run_calls(self, run: list[Any]) -> InlineResult:
        """Make a run of calls; elements beyond what came of it are to be called for again.

        Raises:
            CancelledError: when `cancel` was called.
        """
        left, out = list(run), list[Any]()
        with self._lock:
            self._remaining, self._out, self._taken = left, out, 0
            if self._cancelled:
                raise CancelledError("reading was stopped")
        failure = self._call(out, left)
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
        except BaseException as error:  # noqa: BLE001 - in the place of an element, as on a thread of its own
            return error

    def take_partial_run(self) -> list[Any] | None:
        """What the run has so far that goes on now, and end it with the call that is being made; from any thread.

        None where no calls are being made.
        """
        with self._lock:
            if not self._remaining:
                return None
            first, self._taken = self._taken, len(self._out)
            # Up to the call that is being made: a few more where it is over at this moment, which does no harm.
            del self._remaining[self._taken + 1 :]
            return self._out[first : self._taken]

    def cancel(self) -> None:
        """Begin no further call, for good; from any thread."""
        with self._lock:
            self._cancelled = True
            self._remaining.clear()
