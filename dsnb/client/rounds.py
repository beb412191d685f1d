"""Where one consumer of a coordinated read is, and which element it takes next. A pure core.

Theory of operation. The dispatcher's part is told in `dispatcher/rounds`, the worker's in `worker/round_robin`. Here is
one consumer's: it takes round after round; the lineup says which task gives a round, and with which of its turns. Turns
arrive task by task, in order, and lie here until their rounds come. `at` is the next round.

A turn may be taken when it is whole, as its worker says; or, without asking the worker, who may be gone, when a later
lineup is known: rounds before the newest lineup are settled, because the dispatcher has made that out of what all
consumers have received. If such a round is not here although its task gives none any more, it is this consumer that has
missed it (it came anew, and others had taken it already): it is passed over and counted, so that all stay in step.

In a halt nothing is taken. A consumer that comes anew is halted from the beginning. It answers the dispatcher's halt
when each worker has told it what it still has, and begins with the lineup that was made at a halt which it answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.wire.schedule import ConsumerReport, HeldRounds, RoundSchedule, RoundsUpdate, schedule_of, task_round_of


@dataclass(slots=True)
class TaskRounds:
    """What is here of one task: the turns before `received`, from `consumed` on."""

    complete: int = 0
    first_kept: int = 0
    received: int = 0
    consumed: int = 0
    reported: bool = False
    """Whether its worker has said what it has."""
    items: deque[tuple[int, Any, int]] = field(default_factory=deque)
    """Turn, item and bytes."""
    nbytes: int = 0

    def drop_before(self, before: int) -> None:
        """Forget the turns before one."""
        while self.items and self.items[0][0] < before:
            self.nbytes -= self.items.popleft()[2]
        self.consumed = max(self.consumed, before)


class ConsumerRounds:
    """One consumer's."""

    def __init__(self) -> None:
        self.next_round = 0
        self.begun = False
        self.missed = 0
        """Rounds that were passed over."""
        self.dropped = 0
        """Rounds that no consumer gets, since this one has come."""
        self._halt = 0
        self._halted = True
        self._acknowledged_halt = 0
        """The last halt that it has answered."""
        self._dropped_before: int | None = None
        self._schedules: Sequence[RoundSchedule] = ()
        self._tasks: dict[str, TaskRounds] = {}
        self._active_tasks: set[str] = set()

    # ---- what is heard

    def set_tasks(self, tasks: Collection[str]) -> None:
        """Learn which tasks there are now."""
        self._active_tasks = set(tasks)
        for task in tasks:
            self._tasks.setdefault(task, TaskRounds())
        self._drop_unneeded()

    def receive_update(self, update: RoundsUpdate) -> None:
        """Learn how the dispatcher sees the rounds."""
        self._schedules = update.schedules
        if self._dropped_before is None:
            self._dropped_before = update.dropped
        self.dropped = update.dropped - self._dropped_before
        newest = self._newest_schedule
        if not self.begun and newest is not None and newest.halt >= self._acknowledged_halt > 0:
            self.begun = True
            self.next_round = min(lineup.first_round for lineup in self._schedules if lineup.halt == newest.halt)
        self._halted = bool(update.halt) or not self.begun
        self._halt = update.halt
        self._drop_unneeded()

    def deliver(self, task: str, task_round: int, item: Any, nbytes: int) -> None:
        """Take in a turn that has arrived."""
        turns = self._tasks.setdefault(task, TaskRounds())
        turns.received = task_round + 1
        if task_round >= turns.consumed:
            turns.items.append((task_round, item, nbytes))
            turns.nbytes += nbytes

    def progress(self, task: str, complete_rounds: int, oldest_round: int) -> None:
        """Learn what a worker says of its task."""
        turns = self._tasks.setdefault(task, TaskRounds())
        turns.reported = True
        turns.complete, turns.first_kept = max(turns.complete, complete_rounds), max(turns.first_kept, oldest_round)
        turns.received = max(turns.received, oldest_round)
        turns.drop_before(oldest_round)

    def clear(self) -> None:
        """Let go of all turns that are here."""
        for turns in self._tasks.values():
            turns.items.clear()
            turns.nbytes = 0

    # ---- what is told

    @property
    def _can_acknowledge_halt(self) -> bool:
        """Whether it can say where it is."""
        return self.begun or all(self._tasks[task].reported for task in self._active_tasks)

    def report(self) -> ConsumerReport:
        """Where this consumer is; a halt is answered by its number."""
        halt = self._halt if self._can_acknowledge_halt else 0
        self._acknowledged_halt = max(self._acknowledged_halt, halt)
        return ConsumerReport(
            round=self.next_round,
            begun=self.begun,
            halt=halt,
            held=tuple(
                HeldRounds(task_id=task, received=turns.received, oldest_round=turns.first_kept)
                for task, turns in self._tasks.items()
            ),
        )

    def task_rounds(self, task: str) -> TaskRounds:
        """What is here of a task."""
        return self._tasks.get(task) or TaskRounds()

    def waits_for(self, task: str) -> bool:
        """Whether it cannot go on without this task."""
        if task not in self._active_tasks:
            return False
        found = self._next_source()
        return found[0] == task if found is not None else not self.begun and not self._tasks[task].reported

    # ---- what is taken

    @property
    def ready(self) -> bool:
        """Whether the next round can be taken."""
        found = self._next_source()
        if found is None:
            return False
        task, turn, settled = found
        turns = self._tasks.get(task)
        here = turns is not None and bool(turns.items) and turns.items[0][0] == turn
        return here and (settled or turn < self._tasks[task].complete)

    def take(self) -> Any:
        """The element of the next round; only if that is `ready`."""
        found = self._next_source()
        assert found is not None, "the next round is not ready"
        task, turn, _ = found
        item = self._tasks[task].items[0][1]
        self._tasks[task].drop_before(turn + 1)
        self.next_round += 1
        self._drop_unneeded()
        return item

    def skip_missed(self) -> int:
        """Go on behind rounds that will not come to this consumer; returns how many there were."""
        missed = 0
        while (found := self._next_source()) is not None and not self.ready:
            task, turn, settled = found
            if (
                not settled
                or task in self._active_tasks
                or (task in self._tasks and turn in map(_task_round, self._tasks[task].items))
            ):
                break
            self.next_round += 1
            missed += 1
        self.missed += missed
        return missed

    @property
    def _newest_schedule(self) -> RoundSchedule | None:
        return self._schedules[-1] if self._schedules else None

    def _next_source(self) -> tuple[str, int, bool] | None:
        """The task and turn of the next round, and whether it is settled; None in a halt."""
        newest = self._newest_schedule
        if self._halted or newest is None:
            return None
        lineup = schedule_of(self._schedules, self.next_round)
        if lineup is None:
            return None
        task, turn = task_round_of(lineup, self.next_round)
        return task, turn, self.next_round < newest.first_round

    def _drop_unneeded(self) -> None:
        """Let go of turns that no round needs, and of tasks that give no more."""
        newest = self._newest_schedule
        if newest is None or not self.begun:
            return
        for task, turn in zip(newest.tasks, newest.task_rounds, strict=True):
            if self.next_round >= newest.first_round and task in self._tasks:
                self._tasks[task].drop_before(turn)
        needed = {task for lineup in self._schedules if self._has_rounds_left(lineup) for task in lineup.tasks}
        for task in [task for task in self._tasks if task not in self._active_tasks and task not in needed]:
            del self._tasks[task]

    def _has_rounds_left(self, schedule: RoundSchedule) -> bool:
        """Whether rounds of a lineup are still to come."""
        after = next((other.first_round for other in self._schedules if other.first_round > schedule.first_round), None)
        return after is None or self.next_round < after


def _task_round(item: tuple[int, Any, int]) -> int:
    return item[0]
