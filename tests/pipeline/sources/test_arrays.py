"""What users hand in as arrays is read as arrays, and kept from later changes as far as promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsnb.elements.spec import BYTES, STR, TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.sources.arrays import (
    MAX_COPIED_BYTES,
    array_of,
    column_of,
    flatten_input,
    read_only,
    row_spec,
    tensor_of,
)


def test_lists_are_leaves_and_tuples_and_dicts_are_structure() -> None:
    structure, leaves = flatten_input({"a": [1, 2], "b": ([3], 4)}, "tensors")
    assert str(structure) == "{'a': ·, 'b': (·, ·)}"
    assert leaves == [[1, 2], [3], 4]


def test_small_arrays_are_copied() -> None:
    mine = np.zeros(3)
    kept = array_of(mine, "tensors")
    mine[0] = 1
    assert kept[0] == 0


def test_large_arrays_are_looked_at_and_not_copied() -> None:
    mine = np.zeros(MAX_COPIED_BYTES + 1, np.uint8)
    assert np.shares_memory(array_of(mine, "tensors"), mine)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "M8[s]", "U3", "?", ">i4"])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_kept_cannot_be_written(dtype: str, transposed: bool) -> None:
    array = np.zeros((2, 3), dtype)
    view = read_only(array.T if transposed else array)
    assert view.dtype == array.dtype
    assert view.shape == ((3, 2) if transposed else (2, 3))
    assert not view.flags.writeable
    assert not view[:1].flags.writeable


def test_the_flag_of_a_plain_array_cannot_be_switched_back() -> None:
    with pytest.raises(ValueError, match="WRITEABLE"):
        read_only(np.zeros(3)).flags.writeable = True


@pytest.mark.parametrize(
    "value", [[[1], [1, 2]], [{"a": 1}], object(), [None]], ids=["ragged", "dicts", "object", "None"]
)
def test_what_numpy_cannot_read_is_refused_with_advice(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read as an array") as caught:
        array_of(value, "tensors")
    assert "from_generator" in caught.value.hint


def test_text_is_kept_as_text_whatever_its_length_and_end() -> None:
    assert column_of(["a", "long\0"], "tensors") == ("a", "long\0")
    assert column_of([b"a\0"], "tensors") == (b"a\0",)
    assert column_of(np.array(["a", "b"]), "tensors") == ("a", "b")
    assert column_of(np.array(["a", "b"], object), "tensors") == ("a", "b")


def test_a_row_s_spec_is_the_column_s_without_the_first_dimension() -> None:
    assert row_spec(column_of(np.zeros((3, 2), "f4"), "tensors")) == TensorSpec((2,), "f4")
    assert row_spec(("a",)) == TensorSpec((), STR)
    assert row_spec((b"a",)) == TensorSpec((), BYTES)


def test_a_number_is_a_scalar_and_text_is_text() -> None:
    assert type(tensor_of(1, "tensors")) is np.int64
    assert tensor_of("a", "tensors") == "a"
    assert tensor_of([1], "tensors").tolist() == [1]
