"""Sockets that the thread listens to which waits for what they bring: no other thread has to hand it over.

A hand-over between threads costs two changes of thread and, beside user code that never lets go of the interpreter, a
turn of it for each. So a reader listens for itself where its sockets hold what has come until it looks: shared memory
does, for what comes over the socket are small notices.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Callable, Iterable
from contextlib import suppress

from dsnb.wire import forks


class Poller:
    """What one thread listens to; another one wakes it."""

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._wakeup_fd = -1

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Listen to a socket, and call this when it has something to say, or without cause: it must not wait."""
        if self._poll is None:
            self._wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # fails where no file may be opened
            self._poll = select.poll()
            forks.register_fd(self._wakeup_fd)
            self._poll.register(self._wakeup_fd, select.POLLIN)
        self._callbacks[descriptor] = on_readable
        self._poll.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        """Listen to a socket no more."""
        if self._callbacks.pop(descriptor, None) is not None and self._poll is not None:
            self._poll.unregister(descriptor)

    def wait(self, timeout: float) -> list[int]:
        """The sockets that have something to say; none after `timeout` seconds, or when woken."""
        assert self._poll is not None
        ready = [descriptor for descriptor, _ in self._poll.poll(math.ceil(1000 * timeout))]
        if self._wakeup_fd in ready:
            ready.remove(self._wakeup_fd)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wakeup_fd)
        return ready

    def dispatch(self, ready: Iterable[int] | None = None) -> None:
        """Hear what these have to say, or all."""
        for descriptor in list(self._callbacks) if ready is None else ready:
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()

    def wake(self) -> None:
        """End a wait."""
        os.eventfd_write(self._wakeup_fd, 1)

    def close(self) -> None:
        """Let go of what it takes to listen. The second call does nothing."""
        if self._poll is not None:
            self._poll = None
            forks.unregister_fd(self._wakeup_fd)
            os.close(self._wakeup_fd)
