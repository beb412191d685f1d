"""How often a worker process that died is replaced: pure, the time comes in."""

from __future__ import annotations

from collections import deque


class Replacements:
    """Allows so many replacements within any stretch of time, for all workers of a service together.

    A pipeline that crashes on one element takes a worker with it each time; without a bound it would do so for ever.

    Args:
        limit: How many.
        within_s: Seconds of the stretch.

    Example:
        >>> replacements = Replacements(limit=1, within_s=60.0)
        >>> replacements.allow(now=0.0), replacements.allow(now=59.0), replacements.allow(now=61.0)
        (True, False, True)
    """

    def __init__(self, limit: int, within_s: float) -> None:
        self.limit = limit
        self.within_s = within_s
        self._at: deque[float] = deque()

    def allow(self, now: float) -> bool:
        """Whether one more may begin now; if so, it is counted."""
        while self._at and now - self._at[0] > self.within_s:
            self._at.popleft()
        if len(self._at) >= self.limit:
            return False
        self._at.append(now)
        return True

    @property
    def recent(self) -> int:
        """How many there were within the stretch that ended with the last question."""
        return len(self._at)
