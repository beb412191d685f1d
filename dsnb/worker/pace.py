"""How fast counters grow at present: pure, the time comes in."""

from __future__ import annotations

import math

_SETTLES_S = 2.0
"""A change shows by two thirds after so long."""
_NOW_S = 0.01


class RateMeter:
    """Rates of counters that only grow, smoothed over a few seconds.

    Example:
        >>> pace = Pace()
        >>> for second in range(60):
        ...     pace.see("a", 10 * second, now=float(second))
        >>> round(pace.of("a"), 3)
        10.0
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    def update(self, name: str, count: int, now: float) -> None:
        """Learn where a counter stands; looks that follow closely upon one another are taken as one."""
        at, before = self._last.get(name, (now, count))
        gone = now - at
        if gone < 0.05 and name in self._last:
            return
        self._last[name] = (now, count)
        if gone > 0:
            weight = 1.0 - math.exp(-gone / _SETTLES_S) if name in self._rates else 1.0
            self._rates[name] = (1 - weight) * self._rates.get(name, 0.0) + weight * (count - before) / gone

    def rate(self, name: str) -> float:
        """Units a second; 0 where too little is known."""
        return self._rates.get(name, 0.0)


def seconds_until_eviction(margin: float, drift: float) -> float:
    """How long until a place that drifts back by so many elements a second has no room left; 0 if it does not drift.

    Example:
        >>> seconds_until(30, 10.0), seconds_until(-5, 10.0), seconds_until(30, 0.0)
        (3.0, 0.01, 0.0)
    """
    return max(_NOW_S, margin / drift) if drift > 0 else 0.0
