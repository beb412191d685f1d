"""Copies of elements: their memory is nobody else's, and keeping a small one keeps no more than a block."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from dsnb.elements.copying import (
    BLOCK_BYTES,
    IMMUTABLE,
    RUN_BYTES,
    copy_element,
    copy_rows,
    copy_run,
    copy_run_length,
)
from dsnb.elements.structure import flatten

Pair = namedtuple("Pair", ["image", "label"])  # noqa: PYI024 - what users have


@dataclass(frozen=True)
class Sample:
    image: Any


IMAGE = np.arange(12).reshape(3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("row", [(), (3,), (28, 28), (BLOCK_BYTES,), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, "M8[s]", "S3", "U2", [("a", np.int8), ("b", np.float64)]], ids=str)
@pytest.mark.parametrize("count", [0, 1, 200])
def test_rows_are_equal_and_share_no_memory(row: tuple[int, ...], dtype: Any, count: int) -> None:
    rows = np.zeros((count if np.prod(row) < 10_000 else min(count, 3), *row), np.uint8).astype(np.dtype(dtype))
    copies = copy_rows(rows)
    assert len(copies) == len(rows)
    for copy, original in zip(copies, rows, strict=True):
        np.testing.assert_array_equal(copy, original)
        assert copy.dtype == original.dtype
        if isinstance(copy, np.ndarray):
            assert not np.shares_memory(copy, rows)
            assert not copy.flags.writeable
            assert copy.flags.c_contiguous
            assert copy.base is None or copy.base.nbytes <= max(BLOCK_BYTES, copy.nbytes)


def test_a_record_among_the_rows_is_a_copy() -> None:
    rows = np.zeros(3, [("a", np.int64)])
    copies = copy_rows(rows)
    rows["a"] = 5
    assert [int(copy["a"]) for copy in copies] == [0, 0, 0]


def test_rows_that_lie_over_one_another_are_apart() -> None:
    copies = copy_rows(np.lib.stride_tricks.sliding_window_view(np.arange(6), 3))
    assert not any(np.shares_memory(one, other) for one, other in pairwise(copies))


@pytest.mark.parametrize(
    "element",
    [IMAGE, IMAGE.T, (IMAGE, 1), {"x": [IMAGE, "a"], "y": None}, Pair(IMAGE, b"b"), Sample(IMAGE), IMAGE[:0]],
    ids=["array", "transposed", "tuple", "nested", "named tuple", "dataclass", "empty"],
)
def test_an_element_is_equal_and_of_the_same_kind(element: Any) -> None:
    copy = copy_element(element)
    assert type(copy) is type(element)
    assert repr(copy) == repr(element)
    arrays = [copy] if isinstance(copy, np.ndarray) else [copy.image] if hasattr(copy, "image") else []
    assert not any(np.shares_memory(array, IMAGE) or array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    "element",
    [IMAGE, (IMAGE, 1), (IMAGE, (IMAGE.T, "a")), {"x": IMAGE}, (), ((), IMAGE), 5, None, Pair(IMAGE, 1), [IMAGE]],
    ids=repr,
)
def test_a_run_is_copied_as_its_elements_are(element: Any) -> None:
    for run in ([element], [element] * 3, [element, (IMAGE, IMAGE, 2), element]):
        copies = copy_run(run)
        assert repr(copies) == repr(run)
        arrays = [leaf for copy in copies for leaf in flatten(copy) if isinstance(leaf, np.ndarray)]
        assert not any(np.shares_memory(array, IMAGE) or array.flags.writeable for array in arrays)
        assert not any(np.shares_memory(*pair) for pair in combinations(arrays, 2))


@pytest.mark.parametrize("nbytes, want, count", [(0, 5, 5), (100, 5, 5), (RUN_BYTES // 4, 9, 4), (RUN_BYTES * 3, 9, 1)])
def test_few_large_elements_are_copied_at_once(nbytes: int, want: int, count: int) -> None:
    assert copy_run_length(nbytes, want) == count


@pytest.mark.parametrize("value", [1, 2.0, True, 1j, "a", b"a", None, np.float32(1), np.datetime64(0, "s")], ids=repr)
def test_what_nobody_can_write_to_stays_itself(value: Any) -> None:
    assert copy_element(value) is value
    assert type(value) in IMMUTABLE
