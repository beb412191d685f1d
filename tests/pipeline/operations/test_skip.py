"""`skip` leaves the first elements out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY
from tests.pipeline.driving import failing_at, outcomes, plain, run

COUNTS = st.integers(0, 20)
WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(COUNTS, st.integers(-1, 25), WANTS)
def test_it_is_a_slice(count: int, skipped: int, wants: list[int]) -> None:
    ds = Dataset.range(count).skip(skipped)
    expected = [] if skipped == -1 else list(range(count))[skipped:]
    assert run(ds, wants) == expected
    assert ds.cardinality() == len(expected)


@given(COUNTS, COUNTS, WANTS)
def test_take_and_skip_make_the_whole(count: int, cut: int, wants: list[int]) -> None:
    ds = Dataset.range(count)
    assert run(ds.take(cut).concatenate(ds.skip(cut)), wants) == list(range(count))


def test_an_error_among_the_skipped_is_raised_and_counts_as_skipped() -> None:
    assert [plain(x) for x in outcomes(Dataset.range(5).map(failing_at(1)).skip(3))] == ["RuntimeError", 3, 4]


def test_what_never_ends_still_does_not() -> None:
    assert Dataset.range(1).repeat().skip(9).cardinality() == INFINITE_CARDINALITY
