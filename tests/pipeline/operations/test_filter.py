"""`filter` keeps what the function says yes to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from tests.pipeline.driving import failing_at, outcomes, plain, run, values


@pytest.mark.slow
@given(st.sets(st.integers(0, 30)), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_it_is_python_s_filter_with_errors_in_their_places(bad: set[int], wants: list[int]) -> None:
    picky = failing_at(*bad)
    ds = Dataset.range(31).filter(lambda x: picky(x) % 3 == 0)
    expected = ["RuntimeError" if x in bad else x for x in range(31) if x in bad or x % 3 == 0]
    assert [plain(x) for x in run(ds, wants)] == expected


def test_tuples_are_unpacked() -> None:
    assert values(Dataset.range(5).enumerate(1).filter(lambda i, x: i * x > 5)) == [(3, 2), (4, 3), (5, 4)]


@pytest.mark.parametrize("yes, no", [(True, False), (np.True_, np.False_), (1, 0), (np.array([True]), np.array(False))])
def test_any_single_truth_value_will_do(yes: object, no: object) -> None:
    assert values(Dataset.range(4).filter(lambda x: yes if x % 2 else no)) == [1, 3]


def test_an_answer_that_is_neither_true_nor_false_is_an_error_in_its_place() -> None:
    found = outcomes(Dataset.range(4).filter(lambda x: np.array([True, True]) if x == 1 else x > 1))
    assert [plain(x) for x in found] == ["InvalidArgumentError", 2, 3]
    error = found[0]
    assert isinstance(error, InvalidArgumentError)
    assert "ndarray of shape (2,)" in error.what
    assert ".all()" in error.hint


def test_the_spec_is_the_input_s_and_the_length_is_unknown() -> None:
    ds = Dataset.range(5).filter(lambda x: True)
    assert ds.element_spec == TensorSpec((), np.int64)
    assert ds.cardinality() == UNKNOWN_CARDINALITY
