"""Elements between a reader and its user: which were delivered to the pipeline, and which the user has consumed.

An element is consumed when the user receives it. If operations of this process hold elements back (a shuffle), that
cannot be observed, and an element counts as consumed when it is delivered to them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dsnb.client.inbox import TaskRead
from dsnb.client.tasks import TaskTable
from dsnb.elements.content_digest import FAILURE_HASH, digest_of

_MOST_UNREAD: Final = 4096
"""How many elements a `TakenDigest` can take back."""


class _Unconsumed(msgspec.Struct):
    """Elements of one task that were delivered to the pipeline and are not consumed."""

    task_read: TaskRead
    count: int
    element_bytes: int
    """Bytes of each of these elements."""
    hashes: Sequence[int]
    """The hashes of all that were delivered, of which the last `count` are not consumed; empty if no digest is kept."""

    def hashes_of_first(self, count: int) -> Sequence[int]:
        """The hashes of the first `count` elements that are not consumed."""
        first = len(self.hashes) - self.count
        return self.hashes[first : first + count]


class ConsumptionTracker:
    """Counts the elements of one reader that the user has consumed. Thread-safe.

    Args:
        tasks: The reader's tasks, whose counters it advances.
        keeps_digest: Whether to keep a digest of what was consumed.
    """

    def __init__(self, tasks: TaskTable, *, keeps_digest: bool = False) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()
        self._unconsumed: deque[_Unconsumed] = deque()
        self._counted_early = 0
        """Elements that were counted as consumed before the user received them. They are not counted a second time."""
        self.tracked = False
        """Whether the end of the pipeline reports each element that the user receives."""
        self.held_downstream = False
        """Whether operations of this process hold elements back."""
        self.consumed = 0
        """Total number of elements consumed."""
        self.keeps_digest = keeps_digest
        self._digest = 0

    @property
    def digest(self) -> bytes:
        """The digest of the elements consumed, see `content_digest`; empty if none is kept."""
        return digest_of([self._digest]) if self.keeps_digest else b""

    def reset(self, tasks: TaskTable) -> None:
        """Forget delivered elements: they belong to other readers now, or count as consumed already."""
        with self._lock:
            self._tasks = tasks
            self._unconsumed.clear()

    def add_delivered(self, task_read: TaskRead, count: int, element_bytes: int, hashes: Sequence[int] = ()) -> None:
        """Add elements that were delivered to the pipeline.

        Args:
            task_read: The task that they came from.
            count: The number of elements.
            element_bytes: Bytes of one element.
            hashes: Their hashes, if a digest is kept.
        """
        with self._lock:
            self._unconsumed.append(_Unconsumed(task_read, count, element_bytes, hashes))
        if self.held_downstream:
            self._tasks.mark_dequeued(task_read, count, element_bytes * count)

    def mark_consumed(self, count: int) -> None:
        """Count the oldest `count` delivered elements as consumed."""
        with self._lock:
            known = min(count, self._counted_early)
            self._counted_early -= known
            self._mark_consumed(count - known)

    def _mark_consumed(self, count: int) -> None:
        while count and self._unconsumed:
            first = self._unconsumed[0]
            part = min(count, first.count)
            if self.keeps_digest:
                self._digest += sum(first.hashes_of_first(part))
            first.count -= part
            count -= part
            self.consumed += part
            self._tasks.mark_consumed(first.task_read, part)
            # Otherwise `add_delivered` has counted these elements as dequeued already.
            if not self.held_downstream:
                self._tasks.mark_dequeued(first.task_read, part, first.element_bytes * part)
            if not first.count:
                self._unconsumed.popleft()

    def mark_all_consumed(self, unread: int = 0) -> bool:
        """Count all but the last `unread` delivered elements as consumed; returns whether any were added."""
        with self._lock:
            count = sum(part.count for part in self._unconsumed) - unread
            if count <= 0:
                return False
            self._counted_early += count if self.tracked else 0
            self._mark_consumed(count)
            return True


class TakenDigest:
    """The digest of the elements that a consumer of a coordinated read took. At the end, the last ones may be unread.

    Example:
        >>> digest, other = TakenDigest(), TakenDigest()
        >>> digest.add([5, 6])
        >>> digest.take_back(1)
        >>> other.add([5])
        >>> digest.value == other.value
        True
    """

    def __init__(self) -> None:
        self._sum = 0
        self._last: deque[int] = deque(maxlen=_MOST_UNREAD)
        self._known = True

    @property
    def value(self) -> bytes:
        """The digest, see `content_digest`; empty if it is not known."""
        return digest_of([self._sum]) if self._known else b""

    def add(self, hashes: Iterable[int]) -> None:
        """Add elements, given their hashes."""
        for one in hashes:
            self._sum += one
            self._last.append(one)

    def add_error(self) -> None:
        """Add an error in the place of an element. It cannot be taken back, nor can what came before it."""
        self._sum += FAILURE_HASH
        self._last.clear()

    def take_back(self, unread: int) -> None:
        """Remove the last elements, which their user did not get."""
        self._known = unread <= len(self._last)
        self._sum -= sum(self._last.pop() for _ in range(min(unread, len(self._last))))
