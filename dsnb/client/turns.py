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

from dsnb.client.inbox import Hold, Inbox
from dsnb.client.options import ReadOptions
from dsnb.client.resume import Resumed, tasks_in_turn
from dsnb.wire.messages import TaskInfo
from dsnb.wire.transfer.handover import Piece


class InboxInTurn(Inbox):
    """Gives one element of each task after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[Hold, deque[Piece]] = {}
        self._last: Hold | None = None

    def follow(self, holds: Sequence[Hold]) -> None:
        """Learn which tasks there are now; what is left of others comes before they are forgotten."""
        with self.lock:
            left = [hold for hold, queue in self._queues.items() if queue and hold not in holds]
            order = sorted([*holds, *left], key=lambda hold: (hold.info.worker, hold.info.task_id))
            self._queues = {hold: self._queues.get(hold, deque()) for hold in order}

    def put(self, hold: Hold, piece: Piece) -> None:
        self._queues.setdefault(hold, deque()).append(piece)

    @property
    def ready(self) -> bool:
        hold = self._due()
        return hold is not None and bool(self._queues[hold])

    def take(self) -> tuple[Hold, Piece]:
        hold = self._due()
        assert hold is not None
        queue = self._queues[hold]
        piece = queue.popleft()
        if piece.count > 1:
            queue.appendleft(replace(piece, index=piece.index + 1, start=piece.start + 1, count=piece.count - 1))
        self._last = hold
        return hold, replace(piece, count=1)

    def _forget_pieces(self) -> None:
        self._queues.clear()

    def _due(self) -> Hold | None:
        """The task whose turn it is: the first one behind the last that was served and may still deliver."""
        order = list(self._queues)
        begin = order.index(self._last) + 1 if self._last in self._queues else 0
        for hold in (*order[begin:], *order[:begin]):
            if self._queues[hold] or not hold.account.ended:
                return hold
        return None


class InboxInOrder(Inbox):
    """Gives elements in turns that are known from before; then what comes, as it comes.

    Args:
        turns: Ids of tasks, and how many elements of each come next. A turn of a task that is gone, or has ended, is
            left out.
    """

    def __init__(self, turns: Iterable[tuple[str, int]]) -> None:
        super().__init__()
        self._turns = deque(turns)
        self._holds: dict[str, Hold] | None = None

    def follow(self, holds: Sequence[Hold]) -> None:
        """Learn which tasks there are now."""
        with self.lock:
            self._holds = {hold.info.task_id: hold for hold in holds}

    @property
    def ready(self) -> bool:
        return self._place() is not None

    def take(self) -> tuple[Hold, Piece]:
        place = self._place()
        assert place is not None
        hold, piece = self.pieces[place]
        del self.pieces[place]
        if not self._turns:
            return hold, piece
        task_id, wanted = self._turns.popleft()
        count = min(wanted, piece.count)
        if count < wanted:
            self._turns.appendleft((task_id, wanted - count))
        if count < piece.count:
            rest = replace(piece, index=piece.index + count, start=piece.start + count, count=piece.count - count)
            self.pieces.insert(place, (hold, rest))
        return hold, replace(piece, count=count)

    def _place(self) -> int | None:
        """Where the next piece lies; None if it has not come."""
        while self._turns:
            task_id = self._turns[0][0]
            for place, (hold, _) in enumerate(self.pieces):
                if hold.info.task_id == task_id:
                    return place
            due = self._holds.get(task_id) if self._holds is not None else None
            if self._holds is None or (due is not None and not due.account.ended):
                return None
            self._turns.popleft()
        return 0 if self.pieces else None


def inbox_for(options: ReadOptions, tasks: Sequence[TaskInfo], resumed: Resumed | None) -> Inbox:
    """The inbox of a reader of these tasks."""
    if resumed is not None and resumed.turns:
        return InboxInOrder(tasks_in_turn(resumed, [task.task_id for task in tasks]))
    return InboxInTurn() if options.in_turn else Inbox()
