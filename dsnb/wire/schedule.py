"""Schedules of a coordinated read: which task provides which round. Exchanged by dispatcher and consumers. Pure.

A schedule is a list of tasks that provide rounds in turn, from its first round until the next schedule begins. The
rounds of one task are its *task rounds*, numbered from 0 across all schedules: task round k consists of the task's
elements from k * n up to, but not including, (k + 1) * n, one for each of n consumers. The `.proto` files describe each
field.

Where data end, up to n - 1 elements of each task are left over. A *joined* schedule is one round of such elements: it
names for each consumer the task that provides its element, the element's index in the task, and the task round, which
the task counts for that consumer alone. A schedule without tasks is the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class ConsumerReport(msgspec.Struct, frozen=True, kw_only=True):
    round: int = 0
    begun: bool = False
    halt: int = 0
    held: tuple[HeldRounds, ...] = ()


class HeldRounds(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""
    received: int = 0
    oldest_round: int = 0


class RoundSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    first_round: int = 0
    halt: int = 0
    tasks: tuple[str, ...] = ()
    task_rounds: tuple[int, ...] = ()
    joined: bool = False
    fillers: int = 0
    held: bool = False
    elements: tuple[int, ...] = ()


class RoundsUpdate(msgspec.Struct, frozen=True, kw_only=True):
    halt: int = 0
    schedules: tuple[RoundSchedule, ...] = ()
    dropped: int = 0
    agreed_round: int = 0


class Leftovers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    consumers: tuple[int, ...] = ()
    elements: tuple[int, ...] = ()

    def of_consumer(self, index: int) -> list[int]:
        """The elements that one consumer gets, in order."""
        return [element for consumer, element in zip(self.consumers, self.elements, strict=True) if consumer == index]


def schedule_of(schedules: Sequence[RoundSchedule], round_number: int) -> RoundSchedule | None:
    """The schedule that a round belongs to; None if the round precedes all known schedules."""
    return next((lineup for lineup in reversed(schedules) if lineup.first_round <= round_number), None)


def task_round_of(schedule: RoundSchedule, round_number: int, consumer: int) -> tuple[str, int]:
    """The task that provides a consumer's element of a round, and the number of the task round. Not for the end.

    Example:
        >>> task_round_of(RoundSchedule(first_round=10, tasks=("a", "b"), task_rounds=(5, 0)), 13, consumer=2)
        ('b', 1)
    """
    if schedule.joined:
        return schedule.tasks[consumer], schedule.task_rounds[consumer]
    cycle, index = divmod(round_number - schedule.first_round, len(schedule.tasks))
    return schedule.tasks[index], schedule.task_rounds[index] + cycle


def next_task_round(schedule: RoundSchedule, task: str, round_number: int) -> int:
    """The number of a task's first task round at or after `round_number`, provided that the schedule continues.

    Example:
        >>> schedule = RoundSchedule(first_round=10, tasks=("a", "b"), task_rounds=(5, 0))
        >>> [next_task_round(schedule, "b", number) for number in (10, 11, 12, 13, 14)]
        [0, 0, 1, 1, 2]
    """
    index = schedule.tasks.index(task)
    cycle, at = divmod(round_number - schedule.first_round, len(schedule.tasks))
    return schedule.task_rounds[index] + cycle + (at > index)


def consumer_name(index: int) -> str:
    """The name of a consumer where other jobs show the name of a trainer.

    Example:
        >>> consumer_name(2)
        'consumer 2'
    """
    return f"consumer {index}"
