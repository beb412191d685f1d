"""Limits the number of readers in other processes that a worker serves at once, across all transfers."""

from __future__ import annotations

import threading
from types import TracebackType

from dsnb.errors import ResourceExhaustedError


class Admission:
    """Counts the active readers: from `acquire` to `release`, or inside a `with` statement. Thread-safe.

    Args:
        limit: Most readers at the same time.

    Attributes:
        limit: Most readers at the same time.
        active: How many readers are active now.

    Example:
        >>> with Admission(1) as readers:
        ...     readers.active
        1
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.active = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Count one more reader.

        Raises:
            ResourceExhaustedError: the limit is reached.
        """
        with self._lock:
            if self.active >= self.limit:
                raise ResourceExhaustedError(
                    f"the worker serves {self.active} readers of other processes at once, which is its limit",
                    did="this reader was refused; the others continue",
                    hint="allow more: dsnb.start(max_readers=...), WorkerConfig(max_readers=...), "
                    "`dsnb worker --max-readers`; or close unused iterators, or share one between threads",
                )
            self.active += 1

    def release(self) -> None:
        """Count one reader less, after `acquire`."""
        with self._lock:
            self.active -= 1

    def __enter__(self) -> Admission:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
