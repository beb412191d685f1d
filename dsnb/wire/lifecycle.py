"""How a role ends: once. Whoever asks for it again, or waits for it, goes on when it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from dsnb.wire import forks

_WAIT_S = 10.0
"""How long a second call waits for the first."""


class StopOnce:
    """The end of a server, from any thread.

    Args:
        lock: The server's. What it does under it is done before the end begins, or finds that it has begun.

    Attributes:
        requested: Whether it was asked for.

    Example:
        >>> ending = Ending(threading.Lock())
        >>> ending.run(lambda: print("good night"))
        good night
        >>> ending.run(lambda: print("never"))
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.requested = threading.Event()
        self._lock = lock
        self._finished = threading.Event()

    def run(self, stop: Callable[[], None]) -> None:
        """End by this; the second call only waits for the first, as the process may end next.

        Does nothing in a process that was forked off: the server is the parent's.
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
        """Wait until it is over, for ever if nobody asks for it."""
        self._finished.wait()
