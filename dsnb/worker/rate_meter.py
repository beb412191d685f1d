"""Rates at which counters grow. Pure: the time is an argument."""

from __future__ import annotations

import math

_SETTLES_S = 2.0
"""Time constant of the smoothing: after this long, a rate shows about two thirds of a change."""
_NOW_S = 0.01


class RateMeter:
    """Rates of counters that only grow, smoothed over a few seconds.

    Example:
        >>> rates = RateMeter()
        >>> for second in range(60):
        ...     rates.update("a", 10 * second, now=float(second))
        >>> round(rates.rate("a"), 3)
        10.0
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    def update(self, name: str, count: int, now: float) -> None:
        """Record a counter's value. An update within 50 ms of the last one is ignored.

        Args:
            name: The counter.
            count: Its value.
            now: Seconds of a monotonic clock.
        """
        at, before = self._last.get(name, (now, count))
        gone = now - at
        if gone < 0.05 and name in self._last:
            return
        self._last[name] = (now, count)
        if gone > 0:
            weight = 1.0 - math.exp(-gone / _SETTLES_S) if name in self._rates else 1.0
            self._rates[name] = (1 - weight) * self._rates.get(name, 0.0) + weight * (count - before) / gone

    def rate(self, name: str) -> float:
        """A counter's growth per second; 0 before its second update."""
        return self._rates.get(name, 0.0)


def seconds_until_eviction(margin: float, drift: float) -> float:
    """Seconds until a trainer that falls back reaches the end of the window; 0 if it does not fall back.

    Args:
        margin: How many elements it can fall back before it loses some.
        drift: How many elements per second it falls back.

    Example:
        >>> seconds_until_eviction(30, 10.0), seconds_until_eviction(-5, 10.0), seconds_until_eviction(30, 0.0)
        (3.0, 0.01, 0.0)
    """
    return max(_NOW_S, margin / drift) if drift > 0 else 0.0
