"""`batch`: consecutive elements as one; what does not fit is left out by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dsnb.elements.spec import STR, TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from tests.pipeline.driving import context, drain, failing_at, outcomes, plain, run, values

WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
SHAPES = {
    "array run": Dataset.range(1000),
    "list run": Dataset.range(1000).map(lambda x: x),
    "tuples": Dataset.range(1000).enumerate().map(lambda i, x: (x, {"a": np.full(2, i)})),
}


def batched(size: int, count: int, *, drop: bool) -> list[list[int]]:
    found = [list(range(first, min(first + size, count))) for first in range(0, count, size)]
    return [batch for batch in found if not drop or len(batch) == size]


@pytest.mark.parametrize("kind", SHAPES)
@given(st.integers(1, 7), st.integers(0, 40), st.booleans(), WANTS)
def test_batches_hold_consecutive_elements_whatever_the_lengths_of_runs(
    kind: str, size: int, count: int, drop: bool, wants: list[int]
) -> None:
    ds = SHAPES[kind].take(count).batch(size, drop_remainder=drop)
    first = [batch[0] if isinstance(batch, tuple) else batch for batch in run(ds, wants)]
    assert [batch.tolist() for batch in first] == batched(size, count, drop=drop)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
@given(st.integers(1, 7), st.integers(0, 40), WANTS)
def test_unbatch_undoes_it(kind: str, size: int, count: int, wants: list[int]) -> None:
    ds = SHAPES[kind].take(count)
    assert [plain(x) for x in run(ds.batch(size).unbatch(), wants)] == [plain(x) for x in run(ds)]


def test_batches_of_batches_have_two_dimensions_more() -> None:
    assert values(Dataset.range(6).batch(2).batch(3)) == [[[0, 1], [2, 3], [4, 5]]]


def test_a_batch_is_read_only_inside_the_pipeline_too() -> None:
    for kind in ("array run", "list run"):
        batch = SHAPES[kind].batch(3).operation.build(context()).pull(1)[0]
        assert not batch.flags.writeable


def test_text_becomes_an_array_of_text() -> None:
    (batch,) = list(Dataset.from_tensor_slices(["a", "long"]).batch(2))
    assert batch.dtype == np.dtype("<U4")
    (batch,) = list(Dataset.from_tensor_slices([b"a", b"long"]).batch(2))
    assert batch.tolist() == [b"a", b"long"]


@given(st.integers(0, 20), st.integers(1, 6), WANTS)
def test_an_element_of_another_shape_is_left_out_and_the_others_stay(odd: int, size: int, wants: list[int]) -> None:
    """Wherever it stands: unless it is the first of a batch, which then decides the shape."""
    ds = Dataset.range(21).map(lambda x: np.zeros(3) if x == odd and x % size else np.full(2, x)).batch(size)
    found = run(ds, wants)
    errors = [x for x in found if isinstance(x, Exception)]
    kept = [int(row[0]) for x in found if isinstance(x, np.ndarray) for row in x]
    if odd % size:
        (error,) = errors
        assert isinstance(error, InvalidArgumentError)
        assert error.what == f"element {odd} has the shape (3,), the first of its batch (2,)"
        assert "before `batch`" in error.hint
        assert kept == [x for x in range(21) if x != odd]
    else:
        assert errors == []
        assert kept == list(range(21))


def test_an_element_of_another_structure_is_left_out() -> None:
    found = outcomes(Dataset.range(6).map(lambda x: (x,) if x == 4 else x).batch(3))
    assert [plain(x) for x in found] == [[0, 1, 2], "InvalidArgumentError", [3, 5]]


def test_bytes_that_end_in_a_nul_are_refused_with_advice() -> None:
    found = outcomes(Dataset.from_tensor_slices([b"a", b"b\0", b"c"]).batch(3))
    assert [plain(x) for x in found] == ["InvalidArgumentError", [b"a", b"c"]]
    assert "decode" in found[0].hint


def test_an_error_from_further_up_leaves_what_was_gathered() -> None:
    found = outcomes(Dataset.range(7).map(failing_at(1, 4)).batch(3))
    assert [plain(x) for x in found] == ["RuntimeError", [0, 2, 3], "RuntimeError", [5, 6]]


def test_no_more_elements_are_asked_for_than_the_batch_needs() -> None:
    calls: list[int] = []
    assert len(values(Dataset.range(100).map(lambda x: calls.append(x) or x).batch(4).take(1))) == 1
    assert calls == [0, 1, 2, 3]


@pytest.mark.parametrize("drop, size", [(True, 4), (False, None)])
def test_the_first_dimension_is_known_only_if_all_batches_are_full(drop: bool, size: int | None) -> None:
    ds: Any = Dataset.from_tensor_slices((np.zeros((9, 3), "f4"), ["a"] * 9)).batch(4, drop_remainder=drop)
    assert ds.element_spec == (TensorSpec((size, 3), "f4"), TensorSpec((size,), STR))


@pytest.mark.parametrize("drop, length", [(True, 2), (False, 3)])
def test_the_length_is_rounded(drop: bool, length: int) -> None:
    assert Dataset.range(10).batch(4, drop).cardinality() == length
    assert Dataset.range(10).repeat().batch(4, drop).cardinality() == INFINITE_CARDINALITY
    assert Dataset.range(10).filter(bool).batch(4, drop).cardinality() == UNKNOWN_CARDINALITY


def test_batches_of_rows_are_views_of_the_source_where_they_are_copied_later_and_else_copies() -> None:
    """All but the first few, whose rows were asked for one by one in case they are slow."""
    rows = np.arange(160_000).reshape(40_000, 4)
    for size in (7, 32, 5000):
        ds = Dataset.from_tensor_slices(rows).batch(size)
        copies = list(ds)
        views = drain(ds.operation.build(replace(context(), copied_later=True)))
        (source,) = ds.operation.inputs[0].columns  # type: ignore[attr-defined]
        for batches in (copies, views):
            assert np.array_equal(np.concatenate(batches), rows)
        assert size > 4096 or sum(np.shares_memory(batch, source) for batch in views) > 0.9 * len(views)
        assert not any(np.shares_memory(batch, source) for batch in copies)
        assert all(batch.base is None or batch.base.nbytes <= 64 << 10 for batch in copies if batch.nbytes < 64 << 10)
