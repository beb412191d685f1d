"""How many bytes to produce ahead of the furthest reader. Pure."""

from __future__ import annotations

_FIRST = 128 << 10


class ReadAhead:
    """The adaptive read-ahead limit: 128 KiB at first, doubled when a reader starves although the producer had stopped.

    If the producer had not stopped, the pipeline is slower than the reader, and a higher limit would not help.

    Args:
        most: The largest limit, in bytes.

    Attributes:
        limit: The present limit, in bytes.

    Example:
        >>> ahead = ReadAhead(300_000)
        >>> ahead.reader_starved()  # the pipeline was slower than the reader: more would not have helped
        >>> ahead.producer_stopped()
        >>> ahead.reader_starved()
        >>> ahead.limit
        262144
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = min(most, _FIRST)
        self._stopped = False

    def producer_stopped(self) -> None:
        """Note that the producer stopped at the limit."""
        self._stopped = True

    def reader_starved(self) -> None:
        """Note that a reader found no element ready; doubles the limit if the producer had stopped at it."""
        if self._stopped:
            self._stopped = False
            self.limit = min(self.most, 2 * self.limit)
