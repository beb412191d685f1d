"""Which task gives which round of a coordinated read: what dispatcher and consumers tell one another of it. Pure.

A lineup is a list of tasks that give rounds in turn, from its first round on until the next lineup begins. A task's
rounds are its *turns*, numbered from 0 whatever lineups it is in: turn k of a task is its elements k * n up to
(k + 1) * n, one for each of n consumers. What each field means stands in the `.proto` files.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerReport:
    round: int = 0
    begun: bool = False
    halt: int = 0
    held: tuple[HeldRounds, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRounds:
    task_id: str = ""
    received: int = 0
    oldest_round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSchedule:
    first_round: int = 0
    halt: int = 0
    tasks: tuple[str, ...] = ()
    task_rounds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsUpdate:
    halt: int = 0
    schedules: tuple[RoundSchedule, ...] = ()
    dropped: int = 0


def schedule_of(schedules: Sequence[RoundSchedule], round_number: int) -> RoundSchedule | None:
    """The lineup that a round belongs to; None for one before the first that is known."""
    return next((lineup for lineup in reversed(schedules) if lineup.first_round <= round_number), None)


def task_round_of(schedule: RoundSchedule, round_number: int) -> tuple[str, int]:
    """The task that gives a round of a lineup, and which of its turns that is.

    Example:
        >>> turn_of(Lineup(first=10, tasks=("a", "b"), turns=(5, 0)), 13)
        ('b', 1)
    """
    cycle, index = divmod(round_number - schedule.first_round, len(schedule.tasks))
    return schedule.tasks[index], schedule.task_rounds[index] + cycle


def next_task_round(schedule: RoundSchedule, task: str, round_number: int) -> int:
    """A task's first turn in a round of that number or a later one, if the lineup lasts.

    Example:
        >>> lineup = Lineup(first=10, tasks=("a", "b"), turns=(5, 0))
        >>> [next_turn(lineup, "b", number) for number in (10, 11, 12, 13, 14)]
        [0, 0, 1, 1, 2]
    """
    index = schedule.tasks.index(task)
    cycle, at = divmod(round_number - schedule.first_round, len(schedule.tasks))
    return schedule.task_rounds[index] + cycle + (at > index)


def consumer_name(index: int) -> str:
    """What a consumer is called wherever trainers have names.

    Example:
        >>> consumer_name(2)
        'consumer 2'
    """
    return f"consumer {index}"
