"""A computed random order contains each number once, and reaches all orders evenly."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.permutation import Permutation

KEYS = st.lists(st.integers(0, 2**64), min_size=1, max_size=4)


@given(st.integers(0, 700), KEYS)
def test_each_number_has_one_position(count: int, key: list[int]) -> None:
    order = Permutation(count, key)
    assert sorted(order.of(range(count)).tolist()) == list(range(count))


@given(st.integers(1, 2**62), KEYS, st.data())
def test_numbers_of_a_large_order_differ_and_stay_below_the_count(
    count: int, key: list[int], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, count - 1))
    positions = range(first, min(count, first + 50))
    numbers = Permutation(count, key).of(positions).tolist()
    assert len(set(numbers)) == len(positions)
    assert all(0 <= number < count for number in numbers)


@given(st.integers(1, 5000), KEYS, st.data())
def test_a_number_does_not_depend_on_the_run_that_it_is_computed_in(
    count: int, key: list[int], data: st.DataObject
) -> None:
    order = Permutation(count, key)
    first = data.draw(st.integers(0, count - 1))
    positions = range(first, data.draw(st.integers(first, min(count, first + 100))))
    assert order.of(positions).tolist() == [order.at(position) for position in positions]


def test_another_key_gives_another_order() -> None:
    orders = {tuple(Permutation(1000, (key,)).of(range(1000)).tolist()) for key in range(50)}
    assert len(orders) == 50


def test_all_orders_of_few_numbers_are_about_as_frequent() -> None:
    keys = 960
    found = Counter(tuple(Permutation(4, (key,)).of(range(4)).tolist()) for key in range(keys))
    assert found.keys() == set(permutations(range(4)))
    expected = keys / len(found)
    # 23 degrees of freedom: a fair draw exceeds 60 once in 50,000 times, and these keys are always the same.
    assert sum((count - expected) ** 2 / expected for count in found.values()) < 60


def test_neighbours_are_not_neighbours_afterwards() -> None:
    numbers = Permutation(100_000, (3,)).of(range(100_000))
    assert np.mean(np.abs(np.diff(numbers))) == pytest.approx(100_000 / 3, rel=0.03)
