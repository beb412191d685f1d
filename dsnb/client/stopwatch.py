"""How long a reader has waited, as another thread may ask while it does."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns


class Stopwatch:
    """Time that went by between `start` and `stop`, added up; one thread runs it, any thread may read it.

    Args:
        clock: What it goes by, in nanoseconds.

    Example:
        >>> waits = Stopwatch()
        >>> waits.start()
        >>> 0 < waits.stop() == waits.ns
        True
    """

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._state: tuple[int, int | None] = (0, None)
        """What was measured before, and when the measurement began that goes on; one object: never half new."""

    @property
    def ns(self) -> int:
        """All of it, with what goes on: that may be long."""
        before, began = self._state
        return before if began is None else before + self._clock() - began

    def start(self) -> None:
        """Measure from now on; goes on where it does already."""
        before, began = self._state
        if began is None:
            self._state = before, self._clock()

    def stop(self) -> int:
        """Measure no longer; what was measured since it was started, 0 where it was not."""
        before = self._state[0]
        self._state = self.ns, None
        return self._state[0] - before
