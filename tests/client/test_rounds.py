"""Which round a consumer may take, and what it waits for."""

from __future__ import annotations

from dsnb.client.rounds import ConsumerRounds
from dsnb.wire.schedule import RoundSchedule, RoundsUpdate


def begun(*schedules: RoundSchedule, tasks: str = "tu", consumer: int = 0) -> ConsumerRounds:
    rounds = ConsumerRounds(consumer, 3)
    rounds.set_tasks(list(tasks))
    for task in tasks:
        rounds.progress(task, 0, 0)
    rounds.receive_update(RoundsUpdate(halt=1))
    assert rounds.report().halt == 1
    rounds.receive_update(RoundsUpdate(schedules=schedules))
    return rounds


def joined(*turns: int, first: int = 0, held: bool = False) -> RoundSchedule:
    return RoundSchedule(first_round=first, halt=1, tasks=("t", "t", "u"), task_rounds=turns, joined=True, held=held)


def test_a_joined_round_may_be_taken_when_the_parts_of_all_consumers_are_complete() -> None:
    rounds = begun(joined(0, 0, 0), RoundSchedule(first_round=1, halt=1))
    rounds.deliver("t", 0, "mine", 1)
    rounds.progress("u", 1, 0)
    assert not rounds.ready
    assert (rounds.waits_for("t"), rounds.waits_for("u")) == (True, False), "an error of `u` comes after this round"
    rounds.progress("t", 1, 0)
    assert rounds.ready
    assert rounds.take() == "mine"
    assert rounds.ended


def test_parts_that_all_hold_of_a_task_that_is_gone_need_no_word_of_its_worker() -> None:
    rounds = begun(joined(0, 0, 0, held=True), RoundSchedule(first_round=1, halt=1), tasks="t")
    rounds.deliver("t", 0, "mine", 1)
    assert not rounds.ready
    rounds.progress("t", 1, 0)
    assert rounds.ready


def test_what_came_for_a_round_that_was_dropped_is_passed() -> None:
    rounds = begun(joined(1, 1, 0), RoundSchedule(first_round=1, halt=1))
    for turn in range(2):
        rounds.deliver("t", turn, turn, 1)
    rounds.progress("t", 2, 0)
    rounds.progress("u", 1, 0)
    assert rounds.take() == 1


def test_a_consumer_that_has_taken_all_rounds_has_ended_also_during_a_halt() -> None:
    rounds = begun(RoundSchedule(first_round=0, halt=1))
    assert rounds.ended
    rounds.receive_update(RoundsUpdate(halt=2, schedules=(RoundSchedule(first_round=0, halt=1),)))
    assert rounds.ended
