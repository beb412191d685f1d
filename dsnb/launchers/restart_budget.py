"""Limits how often dead worker processes are replaced. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque


class RestartBudget:
    """Allows up to `limit` restarts within any `window_s` seconds, over all workers of a service.

    A pipeline that crashes on one element kills each worker that reaches it; without a limit, restarts would never end.

    Args:
        limit: The maximum number of restarts.
        window_s: The length of the sliding window, in seconds.

    Example:
        >>> budget = RestartBudget(limit=1, window_s=60.0)
        >>> budget.try_spend(now=0.0), budget.try_spend(now=59.0), budget.try_spend(now=61.0)
        (True, False, True)
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self.window_s = window_s
        self._restart_times: deque[float] = deque()

    def try_spend(self, now: float) -> bool:
        """Whether one more restart is allowed now; if so, it is counted."""
        while self._restart_times and now - self._restart_times[0] > self.window_s:
            self._restart_times.popleft()
        if len(self._restart_times) >= self.limit:
            return False
        self._restart_times.append(now)
        return True

    @property
    def recent(self) -> int:
        """The number of restarts within the window that ended at the last `try_spend`."""
        return len(self._restart_times)
