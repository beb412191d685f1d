"""The tables of a coordinated read: the client of each consumer, and the schedules of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dsnb.dispatcher import records as r
from dsnb.wire.messages import TaskPosition
from dsnb.wire.schedule import Leftovers, RoundSchedule, next_task_round, schedule_of


class Rounds(msgspec.Struct, forbid_unknown_fields=True):
    """The state of one coordinated iteration; the module `rounds` has the theory of operation."""

    client_ids: list[str]
    """The client id of each consumer; empty if the consumer has no client."""
    schedules: list[RoundSchedule] = msgspec.field(default_factory=list)
    scheduled_client_ids: list[str] = msgspec.field(default_factory=list)
    """The client ids at the last agreement; a client that is not among them needs a new one."""
    halt_count: int = 0
    """How many times the consumers have been halted."""
    halted: bool = False
    dropped: int = 0
    """How many rounds were begun and could not reach all consumers."""
    agreed_round: int = 0
    """The round from which on the last agreement planned."""
    positions: dict[str, int] = msgspec.field(default_factory=dict)
    """The next round of each task, at the agreed round."""
    lengths: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of elements of each task whose data have ended."""
    has_unplanned_end: bool = False
    """Whether the data of a task have ended since the last agreement."""
    leftovers: dict[str, Leftovers] | None = None
    """For each task, who gets its left-over elements; None until the data of all tasks have ended."""
    gone_tasks: list[TaskPosition] = msgspec.field(default_factory=list)
    """The tasks that the iteration lost: consumers may still hold rounds of them."""
    waiting_tasks: list[TaskPosition] = msgspec.field(default_factory=list)
    """The tasks that lost their workers before the first agreement, and wait for others."""
    joined_consumers: list[int] = msgspec.field(default_factory=list)
    """The consumers that have, or had, a client."""
    ended_consumers: list[int] = msgspec.field(default_factory=list)
    """The consumers that have taken all rounds."""

    def apply(self, record: r.RoundsHalted | r.RoundsResumed | r.RoundsAgreed) -> None:
        """Apply one record to the halts and schedules."""
        self.halted = isinstance(record, r.RoundsHalted)
        self.halt_count += self.halted
        if isinstance(record, r.RoundsAgreed):
            self._plan(record)

    def task_dropped(self, position: TaskPosition, *, begins_again: bool) -> None:
        """Keep the position of a task that lost its worker."""
        (self.waiting_tasks if begins_again else self.gone_tasks).append(position)

    def task_created(self, position: TaskPosition | None) -> None:
        """Note that a task began, at the position of one that has waited or at another one."""
        if position is not None:
            self.waiting_tasks = [waiting for waiting in self.waiting_tasks if waiting.task_id != position.task_id]

    def task_ended(self, task: str, length: int) -> None:
        """Note that the data of a task have ended."""
        self.lengths[task] = length
        self.has_unplanned_end = True

    def add_client(self, index: int, client_id: str) -> None:
        """Let a client read for a consumer."""
        self.client_ids[index] = client_id
        if index not in self.joined_consumers:
            self.joined_consumers.append(index)

    def remove_client(self, client_id: str) -> None:
        """Remove a client from the consumers."""
        self.client_ids = [known if known != client_id else "" for known in self.client_ids]

    @property
    def present_consumers(self) -> list[int]:
        """The consumers that have rounds to take. One that has no client counts only as long as none has ended.

        After that, its next client reads the next iteration.
        """
        left = [index for index in range(len(self.client_ids)) if index not in self.ended_consumers]
        return [index for index in left if self.client_ids[index]] if self.ended_consumers else left

    @property
    def end_round(self) -> int | None:
        """The round at which the data end; None as long as that is unknown."""
        return self.schedules[-1].first_round if self.leftovers is not None else None

    def next_task_round(self, task: str, round_number: int) -> int | None:
        """The first of a task's rounds that is at or after a round from the agreed one on; None for a new task."""
        found, planned = self.positions.get(task), self._planned()
        ends = [*(schedule.first_round for schedule in planned[1:]), round_number]
        for schedule, end in zip(planned, ends, strict=False):
            if schedule.first_round < round_number and not schedule.joined and task in schedule.tasks:
                found = next_task_round(schedule, task, min(round_number, end))
        return found

    def in_schedule_order(self, tasks: Sequence[str], round_number: int) -> tuple[str, ...]:
        """Order tasks as they would give rounds from a round on, new ones last: an agreement changes no turns."""
        schedule = schedule_of(self.schedules, round_number)
        if schedule is None or schedule.joined or not schedule.tasks:
            return tuple(tasks)
        at = (round_number - schedule.first_round) % len(schedule.tasks)
        order = (*schedule.tasks[at:], *schedule.tasks[:at])
        return (*(task for task in order if task in tasks), *(task for task in tasks if task not in order))

    def joined_from(self, round_number: int) -> list[RoundSchedule]:
        """The planned rounds of left-over elements that are at or after a round."""
        return [planned for planned in self._planned() if planned.joined and planned.first_round >= round_number]

    def _planned(self) -> list[RoundSchedule]:
        return [schedule for schedule in self.schedules if schedule.first_round >= self.agreed_round]

    def _plan(self, agreed: r.RoundsAgreed) -> None:
        """Plan the rounds from an agreement on, and drop schedules whose rounds all consumers have taken."""
        first = agreed.settled[0].first_round if agreed.settled else agreed.agreed_round
        kept = [known for known in self.schedules if known.first_round < first]
        while len(kept) > 1 and kept[1].first_round <= agreed.needed_from:
            del kept[0]
        if kept and first <= agreed.needed_from:
            kept.clear()
        self.agreed_round, self.dropped = agreed.agreed_round, self.dropped + agreed.dropped
        self.positions = dict(zip(agreed.tasks, agreed.task_rounds, strict=True))
        self.leftovers, self.has_unplanned_end = agreed.leftovers, False
        whole = {task: length // len(self.client_ids) for task, length in self.lengths.items()}
        ends = self.leftovers is not None
        planned = plan_rounds(self.agreed_round, self.positions, whole, agreed.joined, ends=ends)
        self.schedules = [*kept, *(replace(one, halt=self.halt_count) for one in (*agreed.settled, *planned))]
        self.scheduled_client_ids = list(self.client_ids)

    def validate(self) -> None:
        """Check the invariants that hold between any two events."""
        assert not self.waiting_tasks or not self.schedules, "rounds were planned without a task that begins again"
        firsts = [schedule.first_round for schedule in self.schedules]
        assert firsts == sorted(set(firsts)), "schedules are not in the order of their rounds"
        for schedule in self.schedules:
            assert schedule.tasks or schedule is self.schedules[-1], "the end is not the last schedule"
            assert self.leftovers is None or not self.schedules[-1].tasks, "the end is not planned"
            assert len(schedule.tasks) == len(schedule.task_rounds), "a schedule has not one task round for each task"
            assert len(schedule.tasks) == len(set(schedule.tasks)) or schedule.joined, "a schedule has a task twice"
            assert not schedule.joined or len(schedule.tasks) == len(self.client_ids), "a consumer gets nothing"
        present = [self.client_ids[index] for index in self.present_consumers]
        assert not self.halted or all(present), "consumers are halted, and not all of them are there to agree"
        here = [client for client in self.client_ids if client]
        assert len(here) == len(set(here)), "one client reads for two consumers"


def plan_rounds(
    first_round: int,
    positions: Mapping[str, int],
    whole_rounds: Mapping[str, int],
    joined: Sequence[RoundSchedule],
    *,
    ends: bool,
) -> list[RoundSchedule]:
    """Return the schedules from a round on: tasks give rounds in turn, and each leaves at its end.

    Args:
        first_round: The first round.
        positions: The next task round of each task.
        whole_rounds: For each task whose data have ended, how many whole rounds it has.
        joined: The rounds of left-over elements, which come last.
        ends: Whether the data of all tasks have ended.

    Example:
        >>> for schedule in plan_rounds(5, {"a": 1, "b": 0}, {"a": 2, "b": 3}, [], ends=True):
        ...     print(schedule.first_round, schedule.tasks, schedule.task_rounds)
        5 ('a', 'b') (1, 0)
        7 ('b',) (1,)
        9 () ()
    """
    planned, at = [], first_round
    active = {task: turn for task, turn in positions.items() if whole_rounds.get(task, turn + 1) > turn}
    while active:
        planned.append(RoundSchedule(first_round=at, tasks=tuple(active), task_rounds=tuple(active.values())))
        ending = [whole_rounds[task] - turn for task, turn in active.items() if task in whole_rounds]
        if not ending:
            return planned
        cycles = min(ending)
        at += cycles * len(active)
        active = {task: turn + cycles for task, turn in active.items() if whole_rounds.get(task) != turn + cycles}
    if not ends:
        return planned
    planned += [replace(one, first_round=at + number) for number, one in enumerate(joined)]
    return [*planned, RoundSchedule(first_round=at + len(joined))]


def share_leftovers(
    lengths: Mapping[str, int], consumers: int, *, fill: bool
) -> tuple[list[RoundSchedule], dict[str, Leftovers]]:
    """Divide the elements that are left over after the last whole round of each task.

    Args:
        lengths: The number of elements of each task.
        consumers: The number of consumers.
        fill: Whether a last round that is not whole is filled with its first element; otherwise it is left out.

    Returns:
        The rounds, without their numbers, and for each task who gets its elements.

    Example:
        >>> rounds, leftovers = share_leftovers({"a": 5, "b": 4}, 3, fill=False)
        >>> [(one.tasks, one.task_rounds) for one in rounds], leftovers["a"].elements
        ([(('a', 'a', 'b'), (1, 1, 1))], (3, 4))
    """
    left = [(task, at) for task, length in lengths.items() for at in range(length - length % consumers, length)]
    given: dict[str, list[tuple[int, int]]] = {task: [] for task in lengths}
    rounds = []
    for first in range(0, len(left), consumers):
        parts = left[first : first + consumers]
        fillers = consumers - len(parts)
        if fillers and not fill:
            break
        parts += parts[:1] * fillers
        turns = []
        for index, (task, at) in enumerate(parts):
            turns.append(lengths[task] // consumers + sum(to == index for to, _ in given[task]))
            given[task].append((index, at))
        tasks, elements = zip(*parts, strict=True)
        rounds.append(
            RoundSchedule(tasks=tasks, task_rounds=tuple(turns), joined=True, fillers=fillers, elements=elements)
        )
    return rounds, {
        task: Leftovers(consumers=tuple(to for to, _ in pairs), elements=tuple(at for _, at in pairs))
        for task, pairs in given.items()
    }
