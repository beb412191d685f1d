"""Chooses how many elements to pull at once: few while they are slow, many while they are cheap."""

from __future__ import annotations

from typing import Final

MAX_RUN_LENGTH: Final = 1024
"""Longer runs than some hundreds of elements gain nothing."""
TARGET_RUN_NS: Final = 1_000_000
"""A run may take this long without a noticeable delay of its first element."""
_TOO_LONG_FACTOR: Final = 4


class AdaptiveRunLength:
    """Length of the next run: 1 at first, doubled while runs are short, halved after one that took far too long.

    Args:
        maximum: The upper limit.
        target_ns: The length doubles after a run that took less than this.

    Example:
        >>> run_length = AdaptiveRunLength(maximum=4)
        >>> for elapsed_ns in (10, 10, 10):
        ...     run_length.note(elapsed_ns)
        >>> run_length.want
        4
    """

    __slots__ = ("_target_ns", "maximum", "want")

    def __init__(self, maximum: int = MAX_RUN_LENGTH, target_ns: int = TARGET_RUN_NS) -> None:
        self.want = 1
        self.maximum = max(1, maximum)
        self._target_ns = target_ns

    def note(self, elapsed_ns: int) -> None:
        """Adapt to the time that the last run took."""
        if elapsed_ns < self._target_ns:
            self.want = min(2 * self.want, self.maximum)
        elif elapsed_ns > _TOO_LONG_FACTOR * self._target_ns:
            self.want = max(1, self.want // 2)
