"""`rebatch` cuts and joins batches; what comes out is what `unbatch` and `batch` would give."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from tests.pipeline.driving import context, failing_at, outcomes, plain, run, values

WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@given(st.lists(st.integers(0, 7), max_size=12), SIZES, st.booleans(), WANTS)
def test_rows_come_in_order_in_batches_of_the_sizes_by_turns(
    lengths: list[int], sizes: list[int], drop: bool, wants: list[int]
) -> None:
    ends = np.cumsum([0, *lengths])
    batches = [(np.arange(a, b), {"a": np.arange(a, b) * 2}) for a, b in itertools.pairwise(ends)]
    ds = Dataset.range(len(batches)).map(lambda i: batches[i]).rebatch(sizes, drop)
    expected, at = [], 0
    for turn in range(sum(lengths)):
        size = sizes[turn % len(sizes)]
        rows = list(range(int(ends[-1])))[at : at + size]
        at += size
        if rows and not (drop and len(rows) < size):
            expected.append((rows, {"a": [2 * row for row in rows]}))
    assert [plain(batch) for batch in run(ds, wants)] == expected


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_it_is_unbatch_and_batch(count: int, before: int, after: int, drop: bool) -> None:
    ds = Dataset.range(count).batch(before)
    assert values(ds.rebatch(after, drop)) == values(ds.unbatch().batch(after, drop))


def test_the_example_of_the_original() -> None:
    assert values(Dataset.range(8).batch(4).rebatch([2, 1, 1])) == [[0, 1], [2], [3], [4, 5], [6], [7]]


def test_batches_of_text_may_be_of_any_width() -> None:
    ds = Dataset.from_tensor_slices(["a", "long", "b", "bc"]).batch(1).rebatch(3)
    assert values(ds) == [["a", "long", "b"], ["bc"]]


def test_a_batch_with_other_rows_is_left_out() -> None:
    odd: dict[int, Any] = {1: np.zeros((2, 3)), 3: np.zeros(2, np.float32), 4: (np.zeros(2),), 5: np.float64(1)}
    found = outcomes(Dataset.range(7).map(lambda x: odd.get(int(x), np.full(2, float(x)))).rebatch(4))
    errors = [x for x in found if isinstance(x, Exception)]
    assert [type(x) for x in errors] == [InvalidArgumentError] * 4
    assert [plain(x) for x in found if not isinstance(x, Exception)] == [[0, 0, 2, 2], [6, 6]]


def test_an_error_from_further_up_leaves_what_is_held() -> None:
    found = outcomes(Dataset.range(6).map(failing_at(2)).map(lambda x: np.full(2, x)).rebatch(3))
    assert [plain(x) for x in found] == [[0, 0, 1], "RuntimeError", [1, 3, 3], [4, 4, 5], [5]]


def test_rows_are_read_only_inside_the_pipeline_too() -> None:
    stage = Dataset.range(6).batch(2).map(np.copy).rebatch(3).operation.build(context())
    assert not any(batch.flags.writeable for _ in range(2) for batch in stage.pull(1))


def test_length_and_spec_are_known_where_batches_are_full() -> None:
    full = Dataset.from_tensor_slices(np.zeros((12, 3))).batch(4, drop_remainder=True)
    assert full.rebatch(5).cardinality() == 3
    assert full.rebatch([5, 6], drop_remainder=True).cardinality() == 2
    assert full.rebatch(5, drop_remainder=True).element_spec == TensorSpec((5, 3), float)
    assert full.rebatch(5).element_spec == TensorSpec((None, 3), float)
    assert Dataset.range(9).batch(2).rebatch(3).cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.range(9).batch(2).repeat().rebatch(3).cardinality() == INFINITE_CARDINALITY


@given(st.integers(0, 60), SIZES, st.booleans())
def test_a_length_that_is_known_is_right(count: int, sizes: list[int], drop: bool) -> None:
    ds = Dataset.range(3 * count).batch(3, drop_remainder=True).rebatch(sizes, drop)
    assert ds.cardinality() == len(values(ds))


@pytest.mark.parametrize("size", [0, [], [2, 0], "x", 1.5], ids=repr)
def test_wrong_sizes_are_refused_at_the_call(size: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.range(9).batch(3).rebatch(size)


def test_scalars_are_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match="no rows"):
        Dataset.range(9).rebatch(3)
