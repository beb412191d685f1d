"""`group_by_window`: elements of one key in windows, each handed to a function that makes a dataset of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import reports
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, by_turns, context, failing_at, outcomes, plain, run, values

WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def as_batch(_: Any, window: Dataset) -> Dataset:
    return window.batch(100)


def grouped(numbers: list[int], keys: int, sizes: list[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    found = []
    for number in numbers:
        group = groups.setdefault(number % keys, [])
        group.append(number)
        if len(group) == sizes[number % keys]:
            found.append(groups.pop(number % keys))
    return found + [groups[key] for key in sorted(groups)]


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 4), st.data(), WANTS)
def test_windows_come_when_they_are_full_and_the_rest_at_the_end_by_key(
    numbers: list[int], keys: int, data: st.DataObject, wants: list[int]
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=keys, max_size=keys))
    ds = Dataset.range(len(numbers)).map(lambda i: numbers[i])
    by_function = ds.group_by_window(lambda x: x % keys, as_batch, window_size_func=lambda key: sizes[key])
    assert [plain(x) for x in run(by_function, wants)] == grouped(numbers, keys, sizes)
    by_number = ds.group_by_window(lambda x: x % keys, as_batch, sizes[0])
    assert [plain(x) for x in run(by_number, wants)] == grouped(numbers, keys, sizes[:1] * keys)


def test_the_function_gets_the_key_and_the_whole_elements() -> None:
    seen: list[Any] = []

    def reduce(key: Any, window: Dataset) -> Dataset:
        seen.append((type(key), int(key), [plain(x) for x in window]))
        return Dataset.from_tensors(key)

    ds = Dataset.range(4).enumerate(10).group_by_window(lambda number, x: x % 2, reduce, 2)
    assert values(ds) == [0, 1]
    assert seen == [(np.int64, 0, [(10, 0), (12, 2)]), (np.int64, 1, [(11, 1), (13, 3)])]


def test_a_window_may_become_any_number_of_elements() -> None:
    ds = Dataset.range(6).group_by_window(lambda x: 0, lambda key, window: window.repeat(2).take(3), 2)
    assert values(ds) == [0, 1, 0, 2, 3, 2, 4, 5, 4]


def test_an_element_whose_key_fails_is_in_no_window() -> None:
    ds = Dataset.range(8).group_by_window(lambda x: failing_at(3)(x) % 2, as_batch, 2)
    assert [plain(x) for x in outcomes(ds)] == [[0, 2], "RuntimeError", [1, 5], [4, 6], [7]]
    ds = Dataset.range(8).map(failing_at(3)).group_by_window(lambda x: x % 2, as_batch, 2)
    assert [plain(x) for x in outcomes(ds)] == [[0, 2], "RuntimeError", [1, 5], [4, 6], [7]]


@given(WANTS)
def test_windows_before_an_error_come_before_it_whatever_the_lengths_of_runs(wants: list[int]) -> None:
    ds = Dataset.range(12).group_by_window(failing_at(4, 7), lambda key, window: window, 1)
    assert [plain(x) for x in run(ds, wants)] == [0, 1, 2, 3, "RuntimeError", 5, 6, "RuntimeError", 8, 9, 10, 11]


@pytest.mark.parametrize("key", ["a", 1.0, None, np.zeros(2)], ids=repr)
def test_a_key_that_is_no_whole_number_stands_for_its_element(key: Any) -> None:
    ds = Dataset.range(4).group_by_window(lambda x: key if x == 1 else 0, as_batch, 3)
    assert [plain(x) for x in outcomes(ds)] == ["InvalidArgumentError", [0, 2, 3]]


def test_a_window_size_below_one_stands_for_its_element() -> None:
    ds = Dataset.range(4).group_by_window(lambda x: x % 2, as_batch, window_size_func=lambda key: 2 * key)
    found = outcomes(ds)
    assert [plain(x) for x in found] == ["InvalidArgumentError", "InvalidArgumentError", [1, 3]]
    assert "Window size must be greater than zero, but got 0" in str(found[0])


def test_a_reduction_that_fails_or_gives_no_dataset_loses_its_window_alone() -> None:
    def reduce(key: int, window: Dataset) -> Any:
        return (failing_at(1)(key), window.batch(9))[1] if key != 2 else 5

    ds = Dataset.range(8).group_by_window(lambda x: x // 2, reduce, 2)
    assert [plain(x) for x in outcomes(ds)] == [[0, 1], "RuntimeError", "InvalidArgumentError", [6, 7]]


@pytest.mark.parametrize("sizes", [{}, {"window_size": 2, "window_size_func": int}, {"window_size": 0}], ids=repr)
def test_wrong_sizes_are_refused_at_the_call(sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.range(4).group_by_window(int, as_batch, **sizes)


def test_splits_of_the_source_are_shared_and_what_is_in_a_window_is_not() -> None:
    """A reduction that zips its window with datasets of its own reads both whole."""

    def reduce(key: int, window: Dataset) -> Dataset:
        return Dataset.zip(window, Dataset.range(100))

    ds = Dataset.range(20).group_by_window(lambda x: x % 2, reduce, 4)
    feed = Feed([provider.count for provider in split_providers(ds.operation)], piece=1)
    shares = by_turns([ds.operation.build(context(splits=feed.task())) for _ in range(2)])
    assert feed.opened == [0, 0]
    assert sorted(int(x) for share in shares for x, _ in share) == list(range(20))
    assert all(int(place) < 4 for share in shares for _, place in share)


def test_the_report_shows_what_is_in_the_groups() -> None:
    stage = Dataset.range(9).group_by_window(lambda x: x % 3, as_batch, 3).operation.build(context())
    stage.pull(1)
    names = {report.name: report for report in reports(stage)}
    assert list(names) == ["group_by_window(<lambda>)", "groups of group_by_window(<lambda>)", "range(9)"]
    gone = names["range(9)"].elements - names["groups of group_by_window(<lambda>)"].buffered
    assert gone in (3, 6), "only full windows have left the groups: the one that was asked for, and perhaps another one"
    stage.close()


def test_spec_and_length_are_not_known() -> None:
    ds = Dataset.range(9).group_by_window(int, as_batch, 3)
    assert (ds.element_spec, ds.cardinality()) == (None, UNKNOWN_CARDINALITY)
