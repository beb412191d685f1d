"""Leaves of several elements become one array, or the one that does not fit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import dsnb
from dsnb.elements.structure import flatten, structure_of
from dsnb.pipeline.engine.assemble import MAX_SHARED_BATCH_BYTES, UnbatchableElement, batch_of, batches_of, stack_leaves


@given(
    st.integers(1, 4).flatmap(lambda n: arrays.arrays(st.sampled_from(["i8", "f4", ">i2", "?", "M8[s]"]), (n, 2, 3)))
)
def test_arrays_are_stacked_as_numpy_does(rows: Any) -> None:
    array = stack_leaves([row.copy() for row in rows])
    np.testing.assert_array_equal(array, np.stack(list(rows)))
    assert array.dtype == rows.dtype


@pytest.mark.parametrize(
    "column, dtype",
    [
        ([1, 2], "int64"),
        ([1.5, 2.0], "float64"),
        ([True, False], "bool"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.int64(1), 2], "int64"),
        ([1, 2.5], "float64"),
        (["a", "long"], "<U4"),
        ([b"a", b"long"], "S4"),
        ([np.datetime64("2020-01-01"), np.datetime64("2021-01-01")], "datetime64[D]"),
        ([np.zeros((2, 2)).T, np.zeros((2, 2)).T], "float64"),
        ([np.zeros((0, 2)), np.zeros((0, 2))], "float64"),
    ],
    ids=str,
)
def test_each_kind_of_leaf_has_its_dtype_and_is_read_only(column: list[Any], dtype: str) -> None:
    array = stack_leaves(column)
    assert array.dtype == np.dtype(dtype)
    assert len(array) == len(column)
    assert not array.flags.writeable
    assert array.tolist() == [x.tolist() if isinstance(x, np.ndarray | np.generic) else x for x in column]


@pytest.mark.parametrize(
    "column, index, said",
    [
        ([np.zeros(2), np.zeros(3)], 1, "element 11 has the shape (3,), the first of its batch (2,)"),
        ([np.zeros(2), 1.0], 1, "shape ()"),
        ([np.zeros(2), np.zeros(2, "f4")], 1, "element 11 has the dtype float32"),
        (["a", "b\0"], 1, "ends in a NUL"),
        ([b"a", b"b\0"], 1, "ends in a NUL"),
        ([b"a", "b"], 1, "type"),
        (["a", 1], 1, "type"),
        ([np.zeros(2), object()], 1, "is not supported"),
        ([1, 2**70], 1, "64 bits"),
    ],
    ids=["shape", "scalar", "dtype", "str", "bytes", "mixed text", "text and number", "object", "big int"],
)
def test_what_does_not_fit_is_named_with_advice(column: list[Any], index: int, said: str) -> None:
    with pytest.raises(UnbatchableElement) as caught:
        stack_leaves(column, 10)
    assert caught.value.index == index
    assert said in caught.value.error.what
    assert caught.value.error.hint


def test_structures_are_batched_leaf_by_leaf() -> None:
    run = [{"x": np.full(2, i), "y": (i, "a")} for i in range(3)]
    batch = batch_of(structure_of(run[0]), run, 0)
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["y"][0].tolist() == [0, 1, 2]


def test_an_element_of_another_structure_is_named() -> None:
    with pytest.raises(UnbatchableElement) as caught:
        batch_of(structure_of((1, 2)), [(1, 2), (1, 2, 3)], 0)
    assert caught.value.index == 1
    assert "built as (·, ·, ·), the first one as (·, ·)" in caught.value.error.what


@pytest.mark.parametrize(
    "elements",
    [
        [np.int64(n) for n in range(12)],
        list(range(12)),
        [n / 2 for n in range(12)],
        [np.full((2, 3), n, np.float32) for n in range(12)],
        [(np.int8(n), {"a b": np.zeros(2), "'": n > 3}) for n in range(12)],
    ],
)
def test_batches_made_together_are_those_made_one_by_one(elements: list[Any]) -> None:
    structure = structure_of(elements[0])
    together = batches_of(structure, elements, 4)
    assert together is not None
    assert len(together) == 3
    for number, batch in enumerate(together):
        alone = batch_of(structure, elements[4 * number : 4 * number + 4], 0)
        assert structure_of(batch) == structure
        for mine, its in zip(flatten(batch), flatten(alone), strict=True):
            assert mine.dtype == its.dtype
            assert not mine.flags.writeable
            np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize(
    "elements",
    [
        ["a", "b", "c", "longer"],
        [1, 2, 3.0, 4],
        [1, 2, 3, 1 << 70],
        [np.timedelta64(1, "s"), np.timedelta64(1, "m"), np.timedelta64(1, "h"), np.timedelta64(1, "s")],
        [np.zeros(2), np.zeros(2), np.zeros(3), np.zeros(2)],
        [np.zeros(MAX_SHARED_BATCH_BYTES // 16, np.uint8)] * 32,
    ],
)
def test_batches_that_depend_on_what_is_in_them_or_are_large_are_made_one_by_one(elements: list[Any]) -> None:
    assert batches_of(structure_of(elements[0]), elements, len(elements) // 2) is None


def test_a_kept_batch_holds_little_more_than_itself() -> None:
    batches = dsnb.Dataset.range(100_000).map(lambda x: x + 1).batch(16)
    assert max(root_of(batch).nbytes for batch in batches) <= MAX_SHARED_BATCH_BYTES


def root_of(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
