"""How a task waits for a dispatcher that is away: it is started again, and what was asked is asked again.

A dispatcher that does not know the task has taken it off this worker: it was cancelled, finished, or given to another
worker. Production then ends without an error: readers learn from the dispatcher what became of the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from dsnb.dataclass import dataclass
from dsnb.errors import CancelledError, DeadlineExceededError, NotFoundError, UnavailableError, mark_out_of_band

T = TypeVar("T")

ATTEMPT_S = 2.0
"""How long one call is tried, so that whoever stops a task need not wait for longer."""

_PAUSE_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Makes a call again and again while nobody answers.

    Args:
        seconds: How long there may be no connection.
        given_up: Whether nobody needs the answer any more.
        connected: Whether there is a connection, so that only the answer is late: a cell may hold the interpreter that
            the dispatcher lives in for a minute. The connection to one that is gone, or stopped for good, breaks.

    Example:
        >>> patience = Patience(seconds=60.0, given_up=lambda: task.stopped, connected=lambda: session.connected)
        >>> patience(lambda: channel.call(GET_SPLITS, request, timeout=ATTEMPT_S))
    """

    seconds: float
    given_up: Callable[[], bool]
    connected: Callable[[], bool]

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's answer.

        Raises:
            DeadlineExceededError: nobody answered for so long.
            CancelledError: the task is not this worker's any more.
        """
        deadline = time.monotonic() + self.seconds
        while True:
            try:
                return call()
            except NotFoundError as error:
                raise mark_out_of_band(CancelledError(error.what)) from error
            except UnavailableError as error:
                if self.given_up():
                    raise mark_out_of_band(CancelledError("the task was stopped")) from error
                if self.connected():
                    deadline = time.monotonic() + self.seconds
                if time.monotonic() > deadline:
                    raise mark_out_of_band(
                        DeadlineExceededError(
                            f"{error.what} for {self.seconds:g} seconds",
                            did="what was asked is asked again when this task is read on",
                            hint="start the dispatcher again where it was (its work_dir and port), or stop reading",
                        )
                    ) from error
                time.sleep(_PAUSE_S)
