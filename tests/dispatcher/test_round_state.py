"""How rounds are planned where data end, and who gets what is left over."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.dispatcher.round_state import plan_rounds, share_leftovers
from dsnb.wire.schedule import schedule_of, task_round_of

LENGTHS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30), min_size=1)
CONSUMERS = st.integers(1, 7)


@given(LENGTHS, CONSUMERS, st.booleans())
def test_each_round_is_whole_and_each_element_is_in_one(lengths: dict[str, int], consumers: int, fill: bool) -> None:
    joined, leftovers = share_leftovers(lengths, consumers, fill=fill)
    whole = {task: length // consumers for task, length in lengths.items()}
    schedules = plan_rounds(0, dict.fromkeys(lengths, 0), whole, joined, ends=True)
    end = schedules[-1].first_round
    assert not schedules[-1].tasks
    given_out: Counter[tuple[str, int]] = Counter()
    for number in range(end):
        schedule = schedule_of(schedules, number)
        assert schedule is not None
        for consumer in range(consumers):
            task, turn = task_round_of(schedule, number, consumer)
            own = leftovers[task].of_consumer(consumer)
            element = turn * consumers + consumer if turn < whole[task] else own[turn - whole[task]]
            given_out[task, element] += consumer < consumers - schedule.fillers
    rounds, rest = divmod(sum(lengths.values()), consumers)
    assert end == rounds + (fill and rest > 0)
    assert max(given_out.values(), default=1) == 1
    assert given_out.total() == (sum(lengths.values()) if fill else rounds * consumers)


@given(LENGTHS, CONSUMERS, st.data())
def test_a_plan_from_any_round_on_goes_on_as_the_plan_before_did(
    lengths: dict[str, int], consumers: int, data: st.DataObject
) -> None:
    whole = {task: length // consumers for task, length in lengths.items()}
    schedules = plan_rounds(0, dict.fromkeys(lengths, 0), whole, [], ends=True)
    at = data.draw(st.integers(0, schedules[-1].first_round))
    positions = Counter(dict.fromkeys(lengths, 0))
    for number in range(at):
        schedule = schedule_of(schedules, number)
        assert schedule is not None
        positions[task_round_of(schedule, number, 0)[0]] += 1
    again = plan_rounds(at, positions, whole, [], ends=True)
    assert again[-1].first_round == schedules[-1].first_round


def test_a_task_whose_data_have_not_ended_gives_rounds_without_end() -> None:
    *before, last = plan_rounds(3, {"a": 0, "b": 4}, {"b": 6}, [], ends=False)
    assert [(one.first_round, one.tasks, one.task_rounds) for one in before] == [(3, ("a", "b"), (0, 4))]
    assert (last.first_round, last.tasks, last.task_rounds) == (7, ("a",), (2,))


@pytest.mark.parametrize("fill", [False, True])
def test_data_without_elements_have_no_rounds(fill: bool) -> None:
    joined, leftovers = share_leftovers({"a": 0}, 3, fill=fill)
    assert (joined, leftovers["a"].elements) == ([], ())
