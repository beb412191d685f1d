"""Rounds of one consumer of a coordinated read: where it stands and which element it takes next. A pure core.

Theory of operation. `dispatcher/handlers/rounds` describes the dispatcher's part, `worker/round_log` the worker's. A
consumer takes round after round. The schedules say which task provides a round, and which of the task's own rounds
("task round") it is. Task rounds arrive in order for each task and are buffered here until their round is due.
`next_round` is the next round to take.

A task round may be taken when it is complete, that is, when its worker reports that all consumers have received it. It
may also be taken if its round lies before the round on which all consumers agreed last: the dispatcher plans from what
all consumers have received, so earlier rounds are settled, even if their worker is gone. If a settled round is not here
and its task no longer delivers, this consumer has missed it: it joined late, after the others had taken that round. It
skips the round and counts it, so that all consumers stay in step.

At the end of the data, rounds are joined from elements that several tasks have left over. Such a round may be taken
when the task rounds of all consumers in it are complete. A schedule without tasks is the end.

During a halt no round is taken. A new consumer starts halted. It acknowledges the dispatcher's halt once each worker
has reported which rounds it still has, and begins with the schedule made at a halt that it acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from dsnb.wire.schedule import (
    ConsumerReport,
    HeldRounds,
    RoundSchedule,
    RoundsUpdate,
    next_task_round,
    schedule_of,
    task_round_of,
)


class TaskRounds(msgspec.Struct):
    """The buffered rounds of one task: from `consumed` up to, not including, `received`.

    Attributes:
        complete: Task rounds below this number were received by all consumers.
        first_kept: The oldest task round that the worker still has.
        received: The task round after the newest that arrived.
        consumed: The oldest task round that may still be taken here.
        reported: Whether its worker has reported which rounds it has.
        items: Task round, item and bytes of each buffered round.
        nbytes: Bytes of all `items`.
    """

    complete: int = 0
    first_kept: int = 0
    received: int = 0
    consumed: int = 0
    reported: bool = False
    items: deque[tuple[int, Any, int]] = msgspec.field(default_factory=deque)
    nbytes: int = 0

    def drop_before(self, before: int) -> None:
        """Drop task rounds below `before`."""
        while self.items and self.items[0][0] < before:
            self.nbytes -= self.items.popleft()[2]
        self.consumed = max(self.consumed, before)


class TakenRounds:
    """Which rounds a consumer took, as runs of rounds that follow one schedule.

    All consumers take the same rounds, so this says how far each task is, whichever consumer asks.

    Args:
        consumers: How many consumers there are.
    """

    def __init__(self, consumers: int) -> None:
        self.total = 0
        """How many rounds were taken."""
        self.first_round: int | None = None
        """The round with which the consumer began; None before."""
        self._consumers = consumers
        self._runs: list[tuple[int, int, RoundSchedule]] = []
        """For each run: how many rounds were taken before it, its first round, and its schedule."""

    def add(self, round_number: int, schedule: RoundSchedule) -> None:
        """Note that a round was taken."""
        before, first, known = self._runs[-1] if self._runs else (0, -1, None)
        if known != schedule or round_number - first != self.total - before:
            self._runs.append((self.total, round_number, schedule))
        self.total += 1

    def elements_after(self, count: int) -> dict[str, int]:
        """How many elements of each task lie before the end of the first `count` of these rounds.

        They are in these rounds, in rounds before them, or in rounds of left-over elements that were dropped. The tasks
        are in the order in which they give the rounds that follow.
        """
        whole: dict[str, int] = {}
        joined: dict[str, int] = {}
        following: list[str] = []
        ends = [*(before for before, _, _ in self._runs[1:]), self.total]
        for (before, first, schedule), end in zip(self._runs, ends, strict=False):
            if before >= count:
                break
            after = first + min(end, count) - before
            if schedule.joined:
                for task, element in zip(schedule.tasks, schedule.elements, strict=True) if after > first else ():
                    joined[task] = max(joined.get(task, 0), element + 1)
                continue
            for task in schedule.tasks:
                turn = next_task_round(schedule, task, after)
                whole[task] = max(whole.get(task, 0), turn)
            at = (after - schedule.first_round) % len(schedule.tasks)
            following = [*schedule.tasks[at:], *schedule.tasks[:at]]
        found = {**dict.fromkeys(joined, 0), **{task: turn * self._consumers for task, turn in whole.items()}}
        found = {task: max(elements, joined.get(task, 0)) for task, elements in found.items()}
        return {task: found[task] for task in [*following, *(one for one in found if one not in following)]}


class _Source(msgspec.Struct, frozen=True):
    """Where the next round comes from.

    Attributes:
        task: The task that gives this consumer its element.
        task_round: The number of the task round.
        settled: Whether it may be taken without the word of its worker.
        parts: The tasks and task rounds that must be complete otherwise.
        held: Whether parts of tasks that are gone count as complete.
        filler: Whether this consumer gets an element that another one has too.
    """

    task: str
    task_round: int
    settled: bool
    parts: tuple[tuple[str, int], ...]
    held: bool = False
    filler: bool = False


class ConsumerRounds:
    """The rounds of one consumer.

    Args:
        consumer: The consumer's index.
        consumers: How many consumers there are.

    Attributes:
        taken: The rounds that this consumer took.
        next_round: The next round to take.
        begun: Whether the consumer has joined the others; `next_round` means nothing before.
        missed: Rounds that this consumer skipped because it did not have them.
        dropped: Rounds that no consumer gets, counted since this one joined.
    """

    def __init__(self, consumer: int, consumers: int) -> None:
        self._consumer = consumer
        self.taken = TakenRounds(consumers)
        self.next_round = 0
        self.begun = False
        self.missed = 0
        self.dropped = 0
        self._halt = 0
        self._halted = True
        self._acknowledged_halt = 0
        """The number of the last halt that this consumer acknowledged."""
        self._dropped_before: int | None = None
        self._schedules: Sequence[RoundSchedule] = ()
        self._agreed_round = 0
        self._tasks: dict[str, TaskRounds] = {}
        self._active_tasks: set[str] = set()

    # ---- events in

    def set_tasks(self, tasks: Collection[str]) -> None:
        """Set the tasks that the job has at present."""
        self._active_tasks = set(tasks)
        for task in tasks:
            self._tasks.setdefault(task, TaskRounds())
        self._drop_unneeded()

    def receive_update(self, update: RoundsUpdate) -> None:
        """Apply the dispatcher's update: schedules, halt and dropped rounds."""
        self._schedules, self._agreed_round = update.schedules, update.agreed_round
        if self._dropped_before is None:
            self._dropped_before = update.dropped
        self.dropped = update.dropped - self._dropped_before
        newest = self._newest_schedule
        if not self.begun and newest is not None and newest.halt >= self._acknowledged_halt > 0:
            self.begun = True
            self.next_round = min(lineup.first_round for lineup in self._schedules if lineup.halt == newest.halt)
            self.taken.first_round = self.next_round
        self._halted = bool(update.halt) or not self.begun
        self._halt = update.halt
        self._drop_unneeded()

    def buffered(self) -> tuple[int, int]:
        """How many elements are buffered, and their bytes."""
        rounds = self._tasks.values()
        return sum(len(one.items) for one in rounds), sum(one.nbytes for one in rounds)

    def deliver(self, task: str, task_round: int, item: Any, nbytes: int) -> None:
        """Buffer a task round that arrived."""
        turns = self._tasks.setdefault(task, TaskRounds())
        turns.received = task_round + 1
        if task_round >= turns.consumed:
            turns.items.append((task_round, item, nbytes))
            turns.nbytes += nbytes

    def progress(self, task: str, complete_rounds: int, oldest_round: int) -> None:
        """Apply a worker's report: how many rounds of its task are complete, and the oldest that it still has."""
        turns = self._tasks.setdefault(task, TaskRounds())
        turns.reported = True
        turns.complete, turns.first_kept = max(turns.complete, complete_rounds), max(turns.first_kept, oldest_round)
        turns.received = max(turns.received, oldest_round)
        turns.drop_before(oldest_round)

    def clear(self) -> None:
        """Drop all buffered rounds of all tasks."""
        for turns in self._tasks.values():
            turns.items.clear()
            turns.nbytes = 0

    # ---- reports

    @property
    def _can_acknowledge_halt(self) -> bool:
        """Whether it knows what to report: it has begun, or all workers have reported which rounds they have."""
        return self.begun or all(self._tasks[task].reported for task in self._active_tasks)

    def report(self) -> ConsumerReport:
        """Return where this consumer stands. A halt is acknowledged by its number."""
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
        """Return the buffered rounds of a task."""
        return self._tasks.get(task) or TaskRounds()

    def waits_for(self, task: str) -> bool:
        """Whether the next round needs this task."""
        if task not in self._active_tasks:
            return False
        found = self._next_source()
        if found is None:
            return not self.begun and not self._tasks[task].reported
        incomplete = any(task == part and turn >= self._tasks[task].complete for part, turn in found.parts)
        return incomplete or (task == found.task and not self._is_here(found))

    # ---- taking rounds

    @property
    def ready(self) -> bool:
        """Whether the next round is here and may be taken."""
        found = self._next_source()
        return found is not None and self._is_here(found) and (found.settled or self._is_complete(found))

    @property
    def ended(self) -> bool:
        """Whether all rounds are taken; also during a halt, since a planned end is final."""
        schedule = schedule_of(self._schedules, self.next_round) if self.begun else None
        return schedule is not None and not schedule.tasks

    @property
    def is_filler(self) -> bool:
        """Whether the next round is filled for this consumer, with an element that another one has too."""
        found = self._next_source()
        return found is not None and found.filler

    def take(self) -> Any:
        """Take the element of the next round. Requires `ready`."""
        found, schedule = self._next_source(), self._next_schedule()
        assert found is not None, "the next round is not ready"
        assert schedule is not None
        self.taken.add(self.next_round, schedule)
        self._tasks[found.task].drop_before(found.task_round)  # those before were of rounds that were dropped
        item = self._tasks[found.task].items[0][1]
        self._tasks[found.task].drop_before(found.task_round + 1)
        self.next_round += 1
        self._drop_unneeded()
        return item

    def _is_here(self, source: _Source) -> bool:
        turns = self._tasks.get(source.task)
        return turns is not None and source.task_round in map(_task_round, turns.items)

    def _is_complete(self, source: _Source) -> bool:
        return all(
            (source.held and task not in self._active_tasks)
            or (task in self._tasks and turn < self._tasks[task].complete)
            for task, turn in source.parts
        )

    def skip_missed(self) -> int:
        """Skip rounds that will not come to this consumer; returns how many.

        A round is missed if it is settled, its task is no longer active and it is not buffered here.
        """
        missed = 0
        while (found := self._next_source()) is not None and not self.ready:
            if not found.settled or found.task in self._active_tasks or self._is_here(found):
                break
            self.next_round += 1
            missed += 1
        self.missed += missed
        return missed

    @property
    def _newest_schedule(self) -> RoundSchedule | None:
        return self._schedules[-1] if self._schedules else None

    def _next_schedule(self) -> RoundSchedule | None:
        """The schedule of the next round; None during a halt."""
        return None if self._halted else schedule_of(self._schedules, self.next_round)

    def _next_source(self) -> _Source | None:
        """Where the next round comes from; None during a halt and at the end."""
        schedule = self._next_schedule()
        if schedule is None or not schedule.tasks:
            return None
        task, turn = task_round_of(schedule, self.next_round, self._consumer)
        return _Source(
            task=task,
            task_round=turn,
            settled=self.next_round < self._agreed_round,
            parts=tuple(zip(schedule.tasks, schedule.task_rounds, strict=True)) if schedule.joined else ((task, turn),),
            held=schedule.held,
            filler=self._consumer >= len(schedule.tasks) - schedule.fillers if schedule.joined else False,
        )

    def _drop_unneeded(self) -> None:
        """Drop task rounds that no round needs, and tasks that provide no more rounds."""
        if not self._schedules or not self.begun:
            return
        if self.next_round >= self._agreed_round:
            for task, turn in self._planned_starts().items():
                if task in self._tasks:
                    self._tasks[task].drop_before(turn)
        needed = self.tasks_to_come()
        for task in [task for task in self._tasks if task not in self._active_tasks and task not in needed]:
            del self._tasks[task]

    def tasks_to_come(self) -> set[str]:
        """The tasks of the rounds that are still to be taken, as far as they are scheduled."""
        return {task for lineup in self._schedules if self._has_rounds_left(lineup) for task in lineup.tasks}

    def _planned_starts(self) -> dict[str, int]:
        """The first task round of each task, for this consumer, since the last agreement."""
        starts: dict[str, int] = {}
        for schedule in self._schedules:
            if schedule.first_round >= self._agreed_round:
                mine = slice(self._consumer, self._consumer + 1) if schedule.joined else slice(None)
                for task, turn in zip(schedule.tasks[mine], schedule.task_rounds[mine], strict=True):
                    starts.setdefault(task, turn)
        return starts

    def _has_rounds_left(self, schedule: RoundSchedule) -> bool:
        """Whether a schedule still has rounds to take."""
        after = next((other.first_round for other in self._schedules if other.first_round > schedule.first_round), None)
        return after is None or self.next_round < after


def _task_round(item: tuple[int, Any, int]) -> int:
    return item[0]
