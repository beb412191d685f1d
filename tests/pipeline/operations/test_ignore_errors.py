"""`ignore_errors` drops failed elements, tells how many at the end, and stops at its budget."""

from __future__ import annotations

import warnings

import pytest

import dsnb
from dsnb.errors import DataLossWarning, FailedPreconditionError
from dsnb.pipeline.dataset import Dataset
from tests.pipeline.driving import failing_at, outcomes, plain, values


def test_failed_elements_are_dropped_and_told_of_at_the_end() -> None:
    ds = Dataset.range(10).map(failing_at(0, 3, 4, 5, 9)).ignore_errors()
    for _ in range(2):
        with pytest.warns(
            DataLossWarning, match=r"dropped 5 element.* with 5 others.*RuntimeError: '0 is bad'"
        ) as told:
            assert values(ds) == [1, 2, 6, 7, 8]
        assert len(told) == 1
        assert str(told[0].message).count("is bad") == 3


def test_without_errors_nothing_is_told() -> None:
    assert values(Dataset.range(5).ignore_errors()) == [0, 1, 2, 3, 4]


def test_reading_that_stops_early_tells_what_was_dropped_so_far() -> None:
    elements = iter(Dataset.range(10).map(failing_at(0, 9)).ignore_errors())
    assert int(next(elements)) == 1
    with pytest.warns(DataLossWarning, match="dropped 1 element"):
        elements.close()


def test_errors_beyond_the_budget_are_raised_in_their_places() -> None:
    ds = Dataset.range(6).map(failing_at(1, 3, 4)).ignore_errors(budget=1)
    with pytest.warns(DataLossWarning, match="dropped 1 element"):
        found = outcomes(ds)
    assert [plain(x) for x in found] == [0, 2, "RuntimeError", "RuntimeError", 5]
    assert any("which is its `budget`" in note for note in found[2].__notes__)


def test_batches_are_made_of_the_elements_that_are_left() -> None:
    with pytest.warns(DataLossWarning):
        assert values(Dataset.range(6).map(failing_at(1)).ignore_errors().batch(2)) == [[0, 2], [3, 4], [5]]


def test_a_position_resumes_behind_dropped_elements() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        dsnb.testing.assert_resumable(Dataset.range(9).map(failing_at(0, 4, 5)).ignore_errors().shuffle(3, seed=1))


def test_it_belongs_after_distribute_and_gets_the_errors_of_workers_there() -> None:
    ds = Dataset.range(8).map(failing_at(2, 5))
    with dsnb.start(workers=1) as svc:
        with pytest.raises(FailedPreconditionError, match="put ignore_errors after `distribute`"):
            ds.ignore_errors().apply(dsnb.distribute("parallel_epochs", svc))
        with pytest.warns(DataLossWarning, match="dropped 2 element"):
            assert values(ds.apply(dsnb.distribute("parallel_epochs", svc)).ignore_errors()) == [0, 1, 3, 4, 6, 7]
