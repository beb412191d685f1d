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


class Ears:
    """What one thread listens to; another one wakes it."""

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        self._hear: dict[int, Callable[[], None]] = {}
        self._alarm = -1

    def __bool__(self) -> bool:
        return bool(self._hear)

    def add(self, descriptor: int, hear: Callable[[], None]) -> None:
        """Listen to a socket, and call this when it has something to say, or without cause: it must not wait."""
        if self._poll is None:
            self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # fails where no file may be opened
            self._poll = select.poll()
            forks.keep_from_children(self._alarm)
            self._poll.register(self._alarm, select.POLLIN)
        self._hear[descriptor] = hear
        self._poll.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        """Listen to a socket no more."""
        if self._hear.pop(descriptor, None) is not None and self._poll is not None:
            self._poll.unregister(descriptor)

    def wait(self, timeout: float) -> list[int]:
        """The sockets that have something to say; none after `timeout` seconds, or when woken."""
        assert self._poll is not None
        spoke = [descriptor for descriptor, _ in self._poll.poll(math.ceil(1000 * timeout))]
        if self._alarm in spoke:
            spoke.remove(self._alarm)
            with suppress(BlockingIOError):
                os.eventfd_read(self._alarm)
        return spoke

    def hear(self, spoke: Iterable[int] | None = None) -> None:
        """Hear what these have to say, or all."""
        for descriptor in list(self._hear) if spoke is None else spoke:
            hear = self._hear.get(descriptor)
            if hear is not None:
                hear()

    def wake(self) -> None:
        """End a wait."""
        os.eventfd_write(self._alarm, 1)

    def close(self) -> None:
        """Let go of what it takes to listen. The second call does nothing."""
        if self._poll is not None:
            self._poll = None
            forks.leave_to_children(self._alarm)
            os.close(self._alarm)
