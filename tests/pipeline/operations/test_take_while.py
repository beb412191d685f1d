"""`take_while` ends before the first no, and what is behind it does not count."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from tests.pipeline.driving import failing_at, outcomes, plain, run, values


@given(st.lists(st.integers(0, 5), max_size=20), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_takewhile(numbers: list[int], wants: list[int]) -> None:
    ds = Dataset.range(len(numbers)).map(lambda i: numbers[i]).take_while(lambda x: x > 0)
    assert run(ds, wants) == list(takewhile(lambda x: x > 0, numbers))


def test_an_error_stands_for_its_element_and_reading_goes_on() -> None:
    ds = Dataset.range(9).take_while(lambda x: failing_at(2)(x) < 5)
    assert [plain(x) for x in outcomes(ds)] == [0, 1, "RuntimeError", 3, 4]
    ds = Dataset.range(9).map(failing_at(2)).take_while(lambda x: x < 5)
    assert [plain(x) for x in outcomes(ds)] == [0, 1, "RuntimeError", 3, 4]


def test_an_error_behind_the_end_does_not_show() -> None:
    assert values(Dataset.range(100).take_while(lambda x: failing_at(5)(x) < 3)) == [0, 1, 2]


def test_an_answer_that_is_no_truth_value_stands_for_its_element() -> None:
    ds = Dataset.range(4).take_while(lambda x: np.zeros(2) if x == 1 else x < 3)
    assert [plain(x) for x in outcomes(ds)] == [0, "InvalidArgumentError", 2]


def test_an_endless_dataset_ends() -> None:
    ds = Dataset.range(5).repeat().take_while(lambda x: x < 3)
    assert ds.cardinality() == UNKNOWN_CARDINALITY
    assert values(ds) == [0, 1, 2]
    assert Dataset.range(0).take_while(bool).cardinality() == 0
    assert ds.element_spec == Dataset.range(5).element_spec
