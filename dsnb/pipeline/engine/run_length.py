"""How many elements to ask for at once: few while they are slow, many while they are cheap."""

from __future__ import annotations

from typing import Final

MAX_RUN_LENGTH: Final = 1024
"""Beyond some hundreds of elements a longer run gains nothing."""
TARGET_RUN_NS: Final = 1_000_000
"""What a run may cost before the first of its elements is held back noticeably."""
_TOO_LONG_FACTOR: Final = 4


class AdaptiveRunLength:
    """The wanted length of the next run: 1 at first, doubled while runs are short, halved when one took far too long.

    Args:
        maximum: The upper limit.
        target_ns: A run that took less is doubled.

    Example:
        >>> pace = Pace(most=4)
        >>> for elapsed_ns in (10, 10, 10):
        ...     pace.note(elapsed_ns)
        >>> pace.want
        4
    """

    __slots__ = ("_target_ns", "maximum", "want")

    def __init__(self, maximum: int = MAX_RUN_LENGTH, target_ns: int = TARGET_RUN_NS) -> None:
        self.want = 1
        self.maximum = max(1, maximum)
        self._target_ns = target_ns

    def note(self, elapsed_ns: int) -> None:
        """Learn from how long the last run took."""
        if elapsed_ns < self._target_ns:
            self.want = min(2 * self.want, self.maximum)
        elif elapsed_ns > _TOO_LONG_FACTOR * self._target_ns:
            self.want = max(1, self.want // 2)
