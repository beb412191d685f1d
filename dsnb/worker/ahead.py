"""How far production runs ahead of the reader that is furthest. Pure."""

from __future__ import annotations

_FIRST = 128 << 10


class ReadAhead:
    """Bytes to keep ready: few at first, twice as many whenever a reader starves and the producer had stopped there.

    Args:
        most: What it may grow to.

    Attributes:
        limit: What it is at present.

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
        self.limit = min(most, _FIRST)
        self._stopped = False

    def producer_stopped(self) -> None:
        """Learn that the producer stops with what is ready now."""
        self._stopped = True

    def reader_starved(self) -> None:
        """Learn that a reader found nothing."""
        if self._stopped:
            self._stopped = False
            self.limit = min(self.most, 2 * self.limit)
