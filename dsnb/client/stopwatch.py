"""Measures waiting time, and can be read by other threads while a wait lasts."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns


class Stopwatch:
    """Adds up the time between `start` and `stop`. One thread runs it; any thread may read it.

    Args:
        clock: Returns the time in nanoseconds.

    Example:
        >>> waits = Stopwatch()
        >>> waits.start()
        >>> 0 < waits.stop() == waits.ns
        True
    """

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._state: tuple[int, int | None] = (0, None)
        """Time of completed measurements, and when the present one began. One tuple, so that other threads never read a
        half-updated state."""

    @property
    def ns(self) -> int:
        """Total time, including the measurement in progress."""
        before, began = self._state
        return before if began is None else before + self._clock() - began

    def start(self) -> None:
        """Start measuring, unless it is measuring already."""
        before, began = self._state
        if began is None:
            self._state = before, self._clock()

    def stop(self) -> int:
        """Stop measuring; returns the time since `start`, 0 if it was not measuring."""
        before = self._state[0]
        self._state = self.ns, None
        return self._state[0] - before
