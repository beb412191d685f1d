"""Inboxes that deliver elements in a fixed order over the tasks: round robin, by splits, or in a recorded order.

A plain `Inbox` delivers what arrives first. Two trainers of one job then see the same elements of each task in the same
order, but the interleaving of the tasks depends on timing. `RoundRobinInbox` takes one element of each task in turn, so
that all trainers see one sequence while the job has the same workers: runs can be compared step by step.
`SplitOrderInbox` delivers elements in the order of the splits, so that the workers do not matter at all. `ReplayInbox`
repeats the order recorded in a reading position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dsnb.client.inbox import Inbox, TaskRead
from dsnb.client.options import ReadOptions
from dsnb.client.position import StartPosition, read_order_of
from dsnb.client.unit_order import UnitLocation, UnitOrder
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.messages import TaskInfo
from dsnb.wire.unit_mark import UnitMark


class RoundRobinInbox(Inbox):
    """Delivers one element of each task in turn.

    It waits for the task whose turn it is, even if others have elements: only a task that has ended is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[TaskRead, deque[FrameSlice]] = {}
        self._last_served: TaskRead | None = None

    def set_task_reads(self, task_reads: Sequence[TaskRead]) -> None:
        """Set the tasks that are read at present.

        Tasks that are gone stay until their buffered elements are delivered.
        """
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
        """The task whose turn it is: the first after the last served one that has elements or has not ended."""
        order = list(self._queues)
        begin = order.index(self._last_served) + 1 if self._last_served in self._queues else 0
        for hold in (*order[begin:], *order[:begin]):
            if self._queues[hold] or not hold.account.ended:
                return hold
        return None


class SplitOrderInbox(Inbox):
    """Delivers elements in the order of their splits; see `pipeline/split_order`.

    It waits for the unit that is due, even if elements of later ones have arrived.
    """

    def __init__(self, start: UnitLocation) -> None:
        super().__init__()
        self._present: Sequence[TaskRead] = ()
        self._order: UnitOrder[TaskRead] = UnitOrder(self._is_over, start)

    def set_task_reads(self, task_reads: Sequence[TaskRead]) -> None:
        """Set the tasks that are read at present. Of tasks that are gone, what has arrived is still delivered."""
        with self.lock:
            self._present = task_reads
            for task_read in task_reads:
                self._order.add_task(task_read)

    def put(self, task_read: TaskRead, frame_slice: FrameSlice) -> None:
        self._order.add(task_read, frame_slice)

    def note_unit(self, task_read: TaskRead, mark: UnitMark) -> None:
        self._order.mark(task_read, mark)

    @property
    def ready(self) -> bool:
        return self._order.ready()

    def take(self) -> tuple[TaskRead, FrameSlice]:
        task_read, frame_slice, self.location = self._order.take()
        return task_read, frame_slice

    def _clear_slices(self) -> None:
        self._order.clear()

    def _is_over(self, task_read: TaskRead) -> bool:
        return task_read.account.ended or task_read not in self._present


class ReplayInbox(Inbox):
    """Delivers elements in a recorded order, then as they arrive.

    Args:
        read_order: Pairs of task id and how many of its elements come next. Entries of a task that is gone or has ended
            are skipped.
    """

    def __init__(self, read_order: Iterable[tuple[str, int]]) -> None:
        super().__init__()
        self._read_order = deque(read_order)
        self._task_reads: dict[str, TaskRead] | None = None

    def set_task_reads(self, task_reads: Sequence[TaskRead]) -> None:
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
        """Index of the next frame slice in `slices`; None if it has not arrived."""
        while self._read_order:
            task_id = self._read_order[0][0]
            for index, (hold, _) in enumerate(self.slices):
                if hold.info.task_id == task_id:
                    return index
            due = self._task_reads.get(task_id) if self._task_reads is not None else None
            # Wait for a task that may still deliver; skip the entry of one that is gone or has ended.
            if self._task_reads is None or (due is not None and not due.account.ended):
                return None
            self._read_order.popleft()
        return 0 if self.slices else None


def inbox_for(options: ReadOptions, tasks: Sequence[TaskInfo], start_position: StartPosition | None) -> Inbox:
    """Make the inbox for a reader of these tasks."""
    if options.ordered:
        unit = start_position.position.unit if start_position is not None else None
        return SplitOrderInbox(
            UnitLocation(unit=unit.unit, unit_end=unit.unit_end, before_in_unit=unit.skip) if unit else UnitLocation()
        )
    if start_position is not None and start_position.read_order:
        return ReplayInbox(read_order_of(start_position, [task.task_id for task in tasks]))
    return RoundRobinInbox() if options.round_robin else Inbox()
