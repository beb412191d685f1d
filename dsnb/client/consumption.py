"""What a reader handed out, and how much of it the user has consumed.

An element is consumed when the user has it. Where operations of this process that hold elements back stand behind the
reader (a shuffle), nobody can tell, and it counts as consumed when it was handed to them.
"""

from __future__ import annotations

import threading
from collections import deque

from dsnb.client.inbox import Hold
from dsnb.client.tasks import TaskTable
from dsnb.dataclass import dataclass


@dataclass(slots=True)
class _HandedOut:
    """Elements of one task that were handed out and that the user has not consumed."""

    hold: Hold
    count: int
    unit: int
    """Bytes of one of them."""


class Consumption:
    """The elements of one reader between its tasks and its user. Thread-safe.

    Args:
        tasks: Where what was consumed is noted.
    """

    def __init__(self, tasks: TaskTable) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()
        self._handed_out: deque[_HandedOut] = deque()
        self._ahead = 0
        """Elements that count as consumed although the user does not have them yet: these are not counted again."""
        self.tracked = False
        """Whether the end of the pipeline tells of each element when the user has it."""
        self.held_behind = False
        """Whether operations of this process hold elements back."""
        self.consumed = 0
        """Elements consumed so far."""

    def start_over(self, tasks: TaskTable) -> None:
        """Forget what was handed out: it belongs to other readers now, or counts as consumed already."""
        with self._lock:
            self._tasks = tasks
            self._handed_out.clear()

    def hand_out(self, hold: Hold, count: int, unit: int) -> None:
        """Note that elements of a task are on their way to the user; `unit` is the bytes of one."""
        with self._lock:
            self._handed_out.append(_HandedOut(hold, count, unit))
        if self.held_behind:
            self._tasks.taken(hold, count, unit * count)

    def confirm(self, count: int) -> None:
        """The user has consumed so many more of what was handed out, the oldest first."""
        with self._lock:
            known = min(count, self._ahead)
            self._ahead -= known
            self._confirm(count - known)

    def _confirm(self, count: int) -> None:
        while count and self._handed_out:
            first = self._handed_out[0]
            part = min(count, first.count)
            first.count -= part
            count -= part
            self.consumed += part
            self._tasks.consumed(first.hold, part)
            if not self.held_behind:
                self._tasks.taken(first.hold, part, first.unit * part)
            if not first.count:
                self._handed_out.popleft()

    def confirm_all(self, unread: int = 0) -> bool:
        """Everything is consumed but for the last `unread`; whether that is more than before."""
        with self._lock:
            count = sum(part.count for part in self._handed_out) - unread
            if count <= 0:
                return False
            self._ahead += count if self.tracked else 0
            self._confirm(count)
            return True
