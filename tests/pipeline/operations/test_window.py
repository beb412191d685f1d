"""`window`: consecutive elements as datasets of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from tests.pipeline.driving import failing_at, outcomes, plain, run, values

WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def windows(count: int, size: int, shift: int, stride: int, *, drop: bool) -> list[list[int]]:
    found = [list(range(count))[first : first + (size - 1) * stride + 1 : stride] for first in range(0, count, shift)]
    return [window for window in found if not drop or len(window) == size]


@given(st.integers(0, 25), st.integers(1, 6), st.integers(1, 8), st.integers(1, 4), st.booleans(), WANTS)
def test_windows_are_slices(count: int, size: int, shift: int, stride: int, drop: bool, wants: list[int]) -> None:
    ds = Dataset.range(count).window(size, shift, stride, drop)
    expected = windows(count, size, shift, stride, drop=drop)
    assert [values(window) for window in run(ds, wants)] == expected
    assert ds.cardinality() == len(expected)


def test_the_examples_of_the_original() -> None:
    assert [values(w) for w in Dataset.range(7).window(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [values(w) for w in Dataset.range(7).window(3, 1, 1, True)] == [[i, i + 1, i + 2] for i in range(5)]
    assert [values(w) for w in Dataset.range(7).window(3, 1, 2, True)] == [[0, 2, 4], [1, 3, 5], [2, 4, 6]]


def test_each_leaf_is_a_dataset_nested_as_the_elements_are() -> None:
    ds = Dataset.from_tensor_slices(([1, 2, 3, 4], {"a": ["w", "x", "y", "z"]})).window(2)
    assert [(values(x), values(y["a"])) for x, y in ds] == [([1, 2], ["w", "x"]), ([3, 4], ["y", "z"])]
    pairs = ds.flat_map(lambda x, y: Dataset.zip(x.batch(2), y["a"].batch(2)))
    assert values(pairs) == [([1, 2], ["w", "x"]), ([3, 4], ["y", "z"])]


def test_a_window_can_be_read_often_and_knows_its_length_and_spec() -> None:
    (window,) = Dataset.range(3).window(5)
    assert values(window) == values(window) == [0, 1, 2]
    assert len(window) == 3
    assert window.element_spec == Dataset.range(3).element_spec


def test_an_element_that_failed_is_in_no_window() -> None:
    found = outcomes(Dataset.range(8).map(failing_at(1, 4)).window(3))
    assert [type(x).__name__ if isinstance(x, Exception) else values(x) for x in found] == [
        "RuntimeError", [0, 2, 3], "RuntimeError", [5, 6, 7],
    ]  # fmt: skip


def test_an_element_that_is_built_differently_is_in_no_window() -> None:
    found = outcomes(Dataset.range(6).map(lambda x: (x,) if x == 4 else x).window(2, stride=2, shift=1))
    told = [type(x).__name__ if isinstance(x, Exception) else values(x) for x in found]
    assert told == [[0, 2], [1, 3], "InvalidArgumentError", [2, 5], [3], [5]]


def test_no_more_elements_are_asked_for_than_the_window_needs() -> None:
    calls: list[int] = []
    ds = Dataset.range(100).map(lambda x: calls.append(int(x)) or x).window(3, shift=5).take(2)
    assert [values(window) for window in ds] == [[0, 1, 2], [5, 6, 7]]
    assert calls == list(range(8))


def test_unknown_and_endless_lengths_stay() -> None:
    assert Dataset.range(9).repeat().window(2).cardinality() == INFINITE_CARDINALITY
    assert Dataset.range(9).filter(bool).window(2).cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.range(9).window(2).element_spec is None


@pytest.mark.parametrize("arguments", [(0,), (2, 0), (2, 1, 0), (2, 1, 1, "yes"), (1.5,)], ids=repr)
def test_wrong_numbers_are_refused_at_the_call(arguments: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.range(9).window(*arguments)


def test_a_window_is_plain_to_those_who_print_it() -> None:
    (window,) = Dataset.range(3).window(3).map(lambda window: window.map(lambda x: x + 1))
    assert plain(list(window)) == [1, 2, 3]
