"""Closing the frame that is due while the pipeline is busy with its next elements."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class FlushTimer(threading.Thread):
    """Does something a while after it was told that there is something to do. Started when it is first told.

    Without it, what was produced in the last moment before a function takes long, or a source waits for its next
    element, would wait as well.

    Args:
        name: Of the thread.
        after_s: How long to wait.
        act: Returns whether there will be something to do again.
    """

    def __init__(self, name: str, after_s: float, act: Callable[[], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._after_s = after_s
        self._act = act
        self._armed = threading.Event()
        self._ended = threading.Event()

    def arm(self) -> None:
        """Have it done soon. From one thread only."""
        if self.ident is None:
            with suppress(RuntimeError):  # the system starts no more threads: what is due waits for the pipeline
                self.start()
        self._armed.set()

    def end(self) -> None:
        """Do nothing more, and wait for the thread."""
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
