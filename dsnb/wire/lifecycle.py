"""Stops a server exactly once, immediately or when its work is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dsnb.wire import forks

_WAIT_S = 10.0
"""Seconds that a second call of `run` waits for the first."""
_POLL_INTERVAL_S = 0.05


SIGNAL_POLL_S = 0.5
"""How often the main thread wakes up for signals: if another thread received one (as after SIGCONT), Python runs the
handler only when the main thread executes bytecode."""


class SignalEvent(threading.Event):
    """An event that a signal handler may set.

    Python runs handlers in the main thread, perhaps while that thread waits for this very event and holds its lock. The
    lock is re-entrant, so that the handler does not wait for itself for ever. Wait with a timeout, in a loop: a wait
    that begins just after the handler ran may miss it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cond = threading.Condition(threading.RLock())


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


class Drainable(Protocol):
    """A server that can finish its work and stop."""

    @property
    def stopped(self) -> bool:
        """Whether the server has stopped."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the server has no work left."""
        ...

    def drain(self) -> None:
        """Accept no new work from now on."""

    def stop(self) -> None:
        """Stop at once, whatever work is left."""


def stop_when_idle(server: Drainable) -> None:
    """Drain a server, and stop it from a new thread once it is idle. A second call is harmless."""
    server.drain()
    threading.Thread(target=_wait_and_stop, args=(server,), name="dsnb-leave", daemon=True).start()


def _wait_and_stop(server: Drainable) -> None:
    while not server.stopped and not server.idle:
        time.sleep(_POLL_INTERVAL_S)
    server.stop()
