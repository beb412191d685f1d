"""`take` gives the first elements and asks for no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from tests.pipeline.driving import failing_at, outcomes, plain, run, values


@given(st.integers(0, 20), st.integers(-1, 25), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_a_slice(count: int, taken: int, wants: list[int]) -> None:
    ds = Dataset.range(count).take(taken)
    expected = list(range(count)) if taken == -1 else list(range(count))[:taken]
    assert run(ds, wants) == expected
    assert ds.cardinality() == len(expected)


def test_it_bounds_what_never_ends() -> None:
    ds = Dataset.range(2).repeat().take(5)
    assert ds.cardinality() == 5
    assert values(ds) == [0, 1, 0, 1, 0]


def test_an_element_that_failed_is_not_one_of_those_taken() -> None:
    assert [plain(x) for x in outcomes(Dataset.range(9).map(failing_at(1)).take(3))] == [0, "RuntimeError", 2, 3]


def test_an_unknown_length_stays_unknown() -> None:
    assert Dataset.range(9).filter(bool).take(3).cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.range(9).filter(bool).take(0).cardinality() == 0
