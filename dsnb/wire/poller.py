"""Lets the thread that waits for elements poll the sockets itself, so that no other thread has to pass them on.

Passing an element between threads costs two context switches and, if other threads keep the GIL busy, a GIL switch
interval for each. A reader therefore polls its own sockets if they can buffer all messages until it looks. Those of
the shared memory transfer can, because they carry small messages only.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Callable, Iterable
from contextlib import suppress

from dsnb.wire import forks


class Poller:
    """The sockets that one thread waits for; other threads can wake it."""

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._wakeup_fd = -1

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Watch a socket. `on_readable` is called when it is readable, sometimes without need, and must not block."""
        if self._poll is None:
            self._wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # raises OSError if open files ran out
            self._poll = select.poll()
            forks.register_fd(self._wakeup_fd)
            self._poll.register(self._wakeup_fd, select.POLLIN)
        self._callbacks[descriptor] = on_readable
        self._poll.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        """Stop watching a socket; does nothing if it is not watched."""
        if self._callbacks.pop(descriptor, None) is not None and self._poll is not None:
            self._poll.unregister(descriptor)

    def wait(self, timeout: float) -> list[int]:
        """Wait for readable sockets and return them; returns none after `timeout` seconds, or when woken."""
        assert self._poll is not None
        ready = [descriptor for descriptor, _ in self._poll.poll(math.ceil(1000 * timeout))]
        if self._wakeup_fd in ready:
            ready.remove(self._wakeup_fd)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wakeup_fd)
        return ready

    def dispatch(self, ready: Iterable[int] | None = None) -> None:
        """Call the callbacks of the sockets in `ready`, or of all sockets."""
        for descriptor in list(self._callbacks) if ready is None else ready:
            callback = self._callbacks.get(descriptor)  # None if an earlier callback has removed it
            if callback is not None:
                callback()

    def wake(self) -> None:
        """Make `wait` return, now or the next time; from any thread."""
        os.eventfd_write(self._wakeup_fd, 1)

    def close(self) -> None:
        """Close the poller's own descriptor. Further calls do nothing."""
        if self._poll is not None:
            self._poll = None
            forks.unregister_fd(self._wakeup_fd)
            os.close(self._wakeup_fd)
