"""How far production runs ahead of the reader that is furthest. Pure."""

from __future__ import annotations

_FIRST = 128 << 10


class Ahead:
    """Bytes to keep ready: few at first, twice as many whenever a reader starves and the producer had stopped there.

    Args:
        most: What it may grow to.

    Attributes:
        now: What it is at present.

    Example:
        >>> ahead = Ahead(300_000)
        >>> ahead.starve()  # the pipeline was slower than the reader: more would not have helped
        >>> ahead.stop()
        >>> ahead.starve()
        >>> ahead.now
        262144
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = min(most, _FIRST)
        self._stopped = False

    def stop(self) -> None:
        """Learn that the producer stops with what is ready now."""
        self._stopped = True

    def starve(self) -> None:
        """Learn that a reader found nothing."""
        if self._stopped:
            self._stopped = False
            self.now = min(self.most, 2 * self.now)
