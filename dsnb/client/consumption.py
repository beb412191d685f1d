"""What a reader handed out, and how much of it the user has consumed.

An element is consumed when the user has it. Where operations of this process that hold elements back stand behind the
reader (a shuffle), nobody can tell, and it counts as consumed when it was handed to them.
"""

from __future__ import annotations

import threading
from collections import deque

from dsnb.client.inbox import TaskRead
from dsnb.client.tasks import TaskTable
from dsnb.dataclass import dataclass


@dataclass(slots=True)
class _Unconsumed:
    """Elements of one task that were handed out and that the user has not consumed."""

    task_read: TaskRead
    count: int
    element_bytes: int
    """Bytes of one of them."""


class ConsumptionTracker:
    """The elements of one reader between its tasks and its user. Thread-safe.

    Args:
        tasks: Where what was consumed is noted.
    """

    def __init__(self, tasks: TaskTable) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()
        self._unconsumed: deque[_Unconsumed] = deque()
        self._counted_early = 0
        """Elements that count as consumed although the user does not have them yet: these are not counted again."""
        self.tracked = False
        """Whether the end of the pipeline tells of each element when the user has it."""
        self.held_downstream = False
        """Whether operations of this process hold elements back."""
        self.consumed = 0
        """Elements consumed so far."""

    def reset(self, tasks: TaskTable) -> None:
        """Forget what was handed out: it belongs to other readers now, or counts as consumed already."""
        with self._lock:
            self._tasks = tasks
            self._unconsumed.clear()

    def add_delivered(self, task_read: TaskRead, count: int, element_bytes: int) -> None:
        """Note that elements of a task are on their way to the user; `element_bytes` is the bytes of one."""
        with self._lock:
            self._unconsumed.append(_Unconsumed(task_read, count, element_bytes))
        if self.held_downstream:
            self._tasks.mark_dequeued(task_read, count, element_bytes * count)

    def mark_consumed(self, count: int) -> None:
        """The user has consumed so many more of what was handed out, the oldest first."""
        with self._lock:
            known = min(count, self._counted_early)
            self._counted_early -= known
            self._mark_consumed(count - known)

    def _mark_consumed(self, count: int) -> None:
        while count and self._unconsumed:
            first = self._unconsumed[0]
            part = min(count, first.count)
            first.count -= part
            count -= part
            self.consumed += part
            self._tasks.mark_consumed(first.task_read, part)
            if not self.held_downstream:
                self._tasks.mark_dequeued(first.task_read, part, first.element_bytes * part)
            if not first.count:
                self._unconsumed.popleft()

    def mark_all_consumed(self, unread: int = 0) -> bool:
        """Everything is consumed but for the last `unread`; whether that is more than before."""
        with self._lock:
            count = sum(part.count for part in self._unconsumed) - unread
            if count <= 0:
                return False
            self._counted_early += count if self.tracked else 0
            self._mark_consumed(count)
            return True
