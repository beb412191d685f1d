"""`scan` hands a state on from element to element; a call that fails leaves it as it was."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from tests.pipeline.driving import failing_at, outcomes, plain, run, values


@given(st.integers(0, 30), st.integers(-5, 5), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_accumulate(count: int, first: int, wants: list[int]) -> None:
    ds = Dataset.range(count).scan(first, lambda state, x: (state + x, (state, x)))
    states = list(accumulate(range(count), initial=first))
    assert run(ds, wants) == list(zip(states, range(count), strict=False))
    assert ds.cardinality() == count


def test_elements_are_passed_whole_and_states_may_be_nested() -> None:
    def step(state: tuple[Any, dict[str, Any]], pair: tuple[int, int]) -> Any:
        count, sums = state
        number, value = pair
        return (count + 1, {"sum": sums["sum"] + value}), (number, count, sums["sum"])

    ds = Dataset.range(10, 14).enumerate().scan((0, {"sum": [0.0, 0.0]}), step)
    assert values(ds) == [(0, 0, [0, 0]), (1, 1, [10, 10]), (2, 2, [21, 21]), (3, 3, [33, 33])]


def test_each_pass_begins_with_the_initial_state() -> None:
    ds = Dataset.range(3).scan(np.zeros(2), lambda state, x: (state + x, state)).repeat(2)
    assert values(ds) == [[0, 0], [0, 0], [1, 1]] * 2


def test_the_initial_state_cannot_be_written_to() -> None:
    def step(state: Any, x: int) -> Any:
        state += x
        return state, state

    found = outcomes(Dataset.range(2).scan(np.zeros(2), step))
    assert [type(x) for x in found] == [ValueError, ValueError]


def test_a_buffer_that_is_state_and_element_may_be_written_to_again() -> None:
    def step(state: Any, x: int) -> Any:
        state = state if state.flags.writeable else state.copy()
        state += x
        return state, (state, [state])

    ds = Dataset.range(1, 4).scan(np.zeros(1), step)
    assert [plain(x) for x in run(ds, [3])] == [([1], [[1]]), ([3], [[3]]), ([6], [[6]])]


def test_a_call_that_fails_leaves_the_state() -> None:
    def step(state: int, x: int) -> tuple[int, int]:
        if x == 2:
            raise RuntimeError("two")
        return state + x, state + x

    assert [plain(x) for x in outcomes(Dataset.range(5).scan(0, step))] == [0, 1, "RuntimeError", 4, 8]


def test_an_error_from_further_up_is_no_call() -> None:
    ds = Dataset.range(4).map(failing_at(1)).scan(0, lambda state, x: (state + 1, state))
    assert [plain(x) for x in outcomes(ds)] == [0, "RuntimeError", 1, 2]


@pytest.mark.parametrize("wrong", [5, [1, 2], (1, 2, 3), (1,), None, ((1, 1), 2)], ids=repr)
def test_what_is_no_pair_of_a_state_and_an_element_stands_for_its_element(wrong: Any) -> None:
    ds = Dataset.range(3).scan(0, lambda state, x: wrong if x == 1 else (state + 1, state))
    assert [plain(x) for x in outcomes(ds)] == [0, "InvalidArgumentError", 1]


def test_a_stop_iteration_of_the_function_ends_nothing() -> None:
    ds = Dataset.range(3).scan(0, lambda state, x: next(iter(())) if x == 1 else (state, x))
    assert [plain(x) for x in outcomes(ds)] == [0, "UserCodeError", 2]


def test_a_state_that_no_array_can_hold_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.range(3).scan(object(), lambda state, x: (state, x))


def test_the_error_says_where_the_function_was_written() -> None:
    (error, *_) = outcomes(Dataset.range(1).scan(0, lambda state, x: (state, 1 // 0)))
    assert "in scan(<lambda>), " in error.__notes__[0]
    assert "test_scan.py" in error.__notes__[0]
