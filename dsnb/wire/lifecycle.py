"""Stops a server exactly once; further calls, and threads that wait for it, return when it has stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from dsnb.wire import forks

_WAIT_S = 10.0
"""Seconds that a second call of `run` waits for the first."""


class StopOnce:
    """Stops a server once, from any thread.

    Args:
        lock: The server's lock. Code that runs under it either completes before the stop begins, or sees `requested`
            set.

    Attributes:
        requested: An event that is set when the stop begins.

    Example:
        >>> stop_once = StopOnce(threading.Lock())
        >>> stop_once.run(lambda: print("good night"))
        good night
        >>> stop_once.run(lambda: print("never"))
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.requested = threading.Event()
        self._lock = lock
        self._finished = threading.Event()

    def run(self, stop: Callable[[], None]) -> None:
        """Call `stop`. Further calls only wait until the first has finished, because the process may exit afterwards.

        Does nothing in a forked child, because the server is the parent's.
        """
        if forks.in_forked_child():
            return
        with self._lock:
            first = not self.requested.is_set()
            self.requested.set()
        if not first:
            self._finished.wait(_WAIT_S)
            return
        try:
            stop()
        finally:
            self._finished.set()

    def wait(self) -> None:
        """Wait until the server has stopped, however long that takes."""
        self._finished.wait()
