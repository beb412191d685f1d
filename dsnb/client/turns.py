"""Inboxes in which the tasks deliver in turns: one element each, or as they did before.

The first is for trainers that are compared step by step: the tasks deliver strictly in turn, one element each.

Usually a reader takes what comes first. Then two trainers of one job see the same elements of each task in the same
order, but the tasks' elements interleaved as the moment had it. Here the next element is always that of the next task
that has not ended, so all trainers see one sequence, as long as the job has the same workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dsnb.client.inbox import Inbox, TaskRead
from dsnb.client.options import ReadOptions
from dsnb.client.position import StartPosition, read_order_of
from dsnb.wire.messages import TaskInfo
from dsnb.wire.transfer.protocol import FrameSlice


class RoundRobinInbox(Inbox):
    """Gives one element of each task after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[TaskRead, deque[FrameSlice]] = {}
        self._last_served: TaskRead | None = None

    def set_task_reads(self, task_reads: Sequence[TaskRead]) -> None:
        """Learn which tasks there are now; what is left of others comes before they are forgotten."""
        with self.lock:
            left = [hold for hold, queue in self._queues.items() if queue and hold not in task_reads]
            order = sorted([*task_reads, *left], key=lambda hold: (hold.info.worker, hold.info.task_id))
            self._queues = {hold: self._queues.get(hold, deque()) for hold in order}

    def put(self, task_read: TaskRead, frame_slice: FrameSlice) -> None:
        self._queues.setdefault(task_read, deque()).append(frame_slice)

    @property
    def ready(self) -> bool:
        hold = self._next_task_read()
        return hold is not None and bool(self._queues[hold])

    def take(self) -> tuple[TaskRead, FrameSlice]:
        hold = self._next_task_read()
        assert hold is not None
        queue = self._queues[hold]
        piece = queue.popleft()
        if piece.count > 1:
            queue.appendleft(replace(piece, index=piece.index + 1, start=piece.start + 1, count=piece.count - 1))
        self._last_served = hold
        return hold, replace(piece, count=1)

    def _clear_slices(self) -> None:
        self._queues.clear()

    def _next_task_read(self) -> TaskRead | None:
        """The task whose turn it is: the first one behind the last that was served and may still deliver."""
        order = list(self._queues)
        begin = order.index(self._last_served) + 1 if self._last_served in self._queues else 0
        for hold in (*order[begin:], *order[:begin]):
            if self._queues[hold] or not hold.account.ended:
                return hold
        return None


class ReplayInbox(Inbox):
    """Gives elements in turns that are known from before; then what comes, as it comes.

    Args:
        read_order: Ids of tasks, and how many elements of each come next. A turn of a task that is gone, or has ended, is
            left out.
    """

    def __init__(self, read_order: Iterable[tuple[str, int]]) -> None:
        super().__init__()
        self._read_order = deque(read_order)
        self._task_reads: dict[str, TaskRead] | None = None

    def set_task_reads(self, task_reads: Sequence[TaskRead]) -> None:
        """Learn which tasks there are now."""
        with self.lock:
            self._task_reads = {hold.info.task_id: hold for hold in task_reads}

    @property
    def ready(self) -> bool:
        return self._find_next() is not None

    def take(self) -> tuple[TaskRead, FrameSlice]:
        index = self._find_next()
        assert index is not None
        hold, piece = self.slices[index]
        del self.slices[index]
        if not self._read_order:
            return hold, piece
        task_id, wanted = self._read_order.popleft()
        count = min(wanted, piece.count)
        if count < wanted:
            self._read_order.appendleft((task_id, wanted - count))
        if count < piece.count:
            rest = replace(piece, index=piece.index + count, start=piece.start + count, count=piece.count - count)
            self.slices.insert(index, (hold, rest))
        return hold, replace(piece, count=count)

    def _find_next(self) -> int | None:
        """Where the next piece lies; None if it has not come."""
        while self._read_order:
            task_id = self._read_order[0][0]
            for index, (hold, _) in enumerate(self.slices):
                if hold.info.task_id == task_id:
                    return index
            due = self._task_reads.get(task_id) if self._task_reads is not None else None
            if self._task_reads is None or (due is not None and not due.account.ended):
                return None
            self._read_order.popleft()
        return 0 if self.slices else None


def inbox_for(options: ReadOptions, tasks: Sequence[TaskInfo], start_position: StartPosition | None) -> Inbox:
    """The inbox of a reader of these tasks."""
    if start_position is not None and start_position.read_order:
        return ReplayInbox(read_order_of(start_position, [task.task_id for task in tasks]))
    return RoundRobinInbox() if options.round_robin else Inbox()
