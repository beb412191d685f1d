"""Runs come together for a frame: by one copy for other processes, by reference for readers in this one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsnb.elements.columns import COPY_BELOW
from dsnb.elements.frame import Frame, frames_of
from dsnb.pipeline.engine.stage import concat_runs
from dsnb.worker.producer import runs_for_local_readers


def elements_of(runs: list[Any]) -> list[Any]:
    found: list[Any] = []
    for run in runs_for_local_readers(runs):
        for frame in frames_of(run, None):
            assert isinstance(frame, Frame)
            found += frame.elements(0, frame.count)
    return found


RUNS: dict[str, Any] = {
    "scalars": [np.arange(5), np.arange(5, 8)],
    "rows": [np.arange(12.0).reshape(4, 3), np.arange(9.0).reshape(3, 3)],
    "rows of two shapes": [np.zeros((4, 3)), np.zeros((4, 2))],
    "lists": [[1, 2], [3]],
    "a list and an array": [[np.int64(1)], np.arange(3)],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_elements_are_the_same_either_way(name: str) -> None:
    runs = RUNS[name]
    expected = [element for run in runs for element in run]
    for found in (list(concat_runs(runs)), elements_of(runs)):
        assert len(found) == len(expected)
        assert all(np.array_equal(mine, its) for mine, its in zip(found, expected, strict=True))


def test_what_user_code_made_is_handed_over_by_reference() -> None:
    made = [np.full(10, number) for number in range(4)]
    assert all(mine is its for mine, its in zip(elements_of([made[:2], made[2:]]), made, strict=True))


def test_large_rows_are_views_of_their_array() -> None:
    batch = np.zeros((3, COPY_BELOW), np.uint8)
    rows = elements_of([batch])
    assert all(np.shares_memory(row, batch[number]) for number, row in enumerate(rows))
    assert not any(row.flags.writeable for row in rows)


def test_a_small_row_holds_no_more_than_a_block() -> None:
    source = np.zeros((100_000, 100), np.uint8)
    for row in elements_of([source[:5000], source[5000:9000]]):
        assert not np.shares_memory(row, source)
        assert row.base.nbytes <= COPY_BELOW
        assert not row.flags.writeable
