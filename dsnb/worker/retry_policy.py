"""Repeats a task's calls while the dispatcher is unreachable, until it is started again or the task is stopped.

A call never fails because the dispatcher is away: the pipeline may be in the middle of anything, such as the search for
the position at which it takes a task over, and could not be continued. After a deadline, the task's readers get an
error, and the call is repeated all the same, for readers that come back.

If the dispatcher does not know the task, the task was cancelled, finished, or moved to another worker. Production then
ends without an error on this worker; clients get the task's state from the dispatcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from dsnb.errors import (
    CancelledError,
    DeadlineExceededError,
    DsnbError,
    NotFoundError,
    UnavailableError,
    mark_out_of_band,
)
from dsnb.wire.control_stream import HANG_TIMEOUT_S

T = TypeVar("T")

ATTEMPT_S = 2.0
"""Timeout of one attempt, which bounds how long a task that is stopped keeps its thread waiting for an answer."""

_PAUSE_S = 0.05


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats a call while the dispatcher does not answer.

    Args:
        seconds: How long the connection may be broken before the readers get an error, and between two errors.
        on_overdue: Called with that error.
        given_up: Returns whether the answer is no longer needed.
        connected: Returns whether the control stream is connected. The answer is then probably only late, and the
            deadline does not run, but for `HANG_TIMEOUT_S` at most.

    Example:
        >>> retry = RetryPolicy(
        ...     seconds=60.0,
        ...     on_overdue=task.fail_readers,
        ...     given_up=lambda: task.stopped,
        ...     connected=lambda: session.connected,
        ... )
        >>> retry(lambda: channel.call(GET_SPLITS, request, timeout=ATTEMPT_S))
    """

    seconds: float
    on_overdue: Callable[[Exception], None]
    given_up: Callable[[], bool]
    connected: Callable[[], bool]

    def __call__(self, call: Callable[[], T]) -> T:
        """Make the call, repeatedly if necessary, and return its answer.

        Args:
            call: The call; raises UnavailableError or DeadlineExceededError if the dispatcher does not answer.

        Raises:
            CancelledError: the task was stopped, or the dispatcher does not know it.
        """
        began = tried_at = time.monotonic()
        deadline, late_s = began + self.seconds, 0.0
        while True:
            try:
                return call()
            except NotFoundError as error:
                raise mark_out_of_band(CancelledError(error.what)) from error
            except (UnavailableError, DeadlineExceededError) as error:
                if self.given_up():
                    raise mark_out_of_band(CancelledError("the task was stopped")) from error
                now = time.monotonic()
                if self.connected() and late_s < HANG_TIMEOUT_S:
                    deadline, late_s = now + self.seconds, late_s + now - tried_at
                tried_at = now
                if now > deadline:
                    self.on_overdue(_overdue(error, now - began))
                    deadline = now + self.seconds
                time.sleep(_PAUSE_S)


def _overdue(error: DsnbError, seconds: float) -> Exception:
    return mark_out_of_band(
        DeadlineExceededError(
            f"{error.what} for {seconds:.3g} seconds",
            did="the worker asks again, and this read continues where it was if you call `next` again",
            hint="does a long-running cell block the dispatcher? If the dispatcher has ended, start it again where it "
            "was (its work_dir and port)",
        )
    )
