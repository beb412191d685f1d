"""A timer thread that closes a frame which is due while the pipeline is busy with its next elements."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class FlushTimer(threading.Thread):
    """Calls a function a fixed time after it was armed, repeatedly while the function returns True.

    Without it, elements produced just before a slow call or a slow source would be delayed until that returns. The
    thread starts when the timer is first armed.

    Args:
        name: The thread's name.
        after_s: Seconds from `arm` to the call, and between calls.
        act: The function; returns whether to call it again.
    """

    def __init__(self, name: str, after_s: float, act: Callable[[], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._after_s = after_s
        self._act = act
        self._armed = threading.Event()
        self._ended = threading.Event()

    def arm(self) -> None:
        """Request a call after `after_s` seconds. Must be used by one thread only."""
        if self.ident is None:
            with suppress(RuntimeError):  # no more threads can be started: frames are then closed by the pipeline only
                self.start()
        self._armed.set()

    def end(self) -> None:
        """Make no further calls, and wait for the thread to end."""
        self._ended.set()
        self._armed.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        while not self._ended.is_set():
            self._armed.wait()
            self._armed.clear()
            while not self._ended.wait(self._after_s) and self._act():
                pass
