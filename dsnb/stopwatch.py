"""Measures time that other threads can read while it is being measured."""

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

    __slots__ = ("_clock", "_state")

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

    @property
    def running(self) -> bool:
        """Whether a measurement is in progress."""
        return self._state[1] is not None

    @property
    def completed_ns(self) -> int:
        """Total time without the measurement in progress."""
        return self._state[0]

    def start(self) -> None:
        """Start measuring, unless it is measuring already."""
        before, began = self._state
        if began is None:
            self._state = before, self._clock()

    def stop(self) -> int:
        """Stop measuring; returns the time since `start`, 0 if it was not measuring."""
        before, began = self._state
        if began is None:
            return 0
        elapsed = self._clock() - began
        self._state = before + elapsed, None
        return elapsed

    def add(self, ns: int) -> None:
        """Add time that was measured elsewhere."""
        before, began = self._state
        self._state = before + ns, began
