"""How often a worker process that died is replaced: pure, the time comes in."""

from __future__ import annotations

from collections import deque


class RestartBudget:
    """Allows so many replacements within any stretch of time, for all workers of a service together.

    A pipeline that crashes on one element takes a worker with it each time; without a bound it would do so for ever.

    Args:
        limit: How many.
        window_s: Seconds of the stretch.

    Example:
        >>> replacements = Replacements(limit=1, within_s=60.0)
        >>> replacements.allow(now=0.0), replacements.allow(now=59.0), replacements.allow(now=61.0)
        (True, False, True)
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self.window_s = window_s
        self._restart_times: deque[float] = deque()

    def try_spend(self, now: float) -> bool:
        """Whether one more may begin now; if so, it is counted."""
        while self._restart_times and now - self._restart_times[0] > self.window_s:
            self._restart_times.popleft()
        if len(self._restart_times) >= self.limit:
            return False
        self._restart_times.append(now)
        return True

    @property
    def recent(self) -> int:
        """How many there were within the stretch that ended with the last question."""
        return len(self._restart_times)
