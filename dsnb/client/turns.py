"""An inbox for trainers that are compared step by step: the tasks deliver strictly in turn, one element each.

Usually a reader takes what comes first. Then two trainers of one job see the same elements of each task in the same
order, but the tasks' elements interleaved as the moment had it. Here the next element is always that of the next task
that has not ended, so all trainers see one sequence, as long as the job has the same workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from dsnb.client.inbox import Hold, Inbox
from dsnb.wire.transfer.handover import Piece


class InboxInTurn(Inbox):
    """Gives one element of each task after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[Hold, deque[Piece]] = {}
        self._last: Hold | None = None

    def follow(self, holds: Sequence[Hold]) -> None:
        """Learn which tasks there are now; what is left of others comes before they are forgotten."""
        with self.changed:
            left = [hold for hold, queue in self._queues.items() if queue and hold not in holds]
            order = sorted([*holds, *left], key=lambda hold: (hold.info.worker, hold.info.task_id))
            self._queues = {hold: self._queues.get(hold, deque()) for hold in order}

    def put(self, hold: Hold, piece: Piece) -> None:
        self._queues.setdefault(hold, deque()).append(piece)
        self.changed.notify_all()

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

    def _due(self) -> Hold | None:
        """The task whose turn it is: the first one behind the last that was served and may still deliver."""
        order = list(self._queues)
        begin = order.index(self._last) + 1 if self._last in self._queues else 0
        for hold in (*order[begin:], *order[:begin]):
            if self._queues[hold] or not hold.account.ended:
                return hold
        return None
