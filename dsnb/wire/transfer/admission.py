"""How many readers of other processes a worker serves at once, over all ways of handing over."""

from __future__ import annotations

import threading
from types import TracebackType

from dsnb.errors import ResourceExhaustedError


class Admission:
    """Lets so many readers in; one is inside from `acquire` to `release`, or in a `with`.

    Args:
        limit: How many.

    Example:
        >>> with Admission(1) as readers:
        ...     readers.inside
        1
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.active = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Let a reader in.

        Raises:
            ResourceExhaustedError: there are as many as there may be.
        """
        with self._lock:
            if self.active >= self.limit:
                raise ResourceExhaustedError(
                    f"the worker serves {self.active} readers of other processes at once, which is its limit",
                    did="this reader was refused; the others read on",
                    hint="allow more: dsnb.start(max_readers=...), WorkerConfig(max_readers=...), "
                    "`dsnb worker --max-readers`; or close iterators that nobody reads, or share one among threads",
                )
            self.active += 1

    def release(self) -> None:
        """Let a reader out."""
        with self._lock:
            self.active -= 1

    def __enter__(self) -> Admission:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
