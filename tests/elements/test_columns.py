"""Columns hold what user code makes, exactly, and give it out read-only without pinning what it came in."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from dsnb.elements.columns import (
    COPY_BELOW,
    Column,
    Dense,
    Layout,
    Ragged,
    Text,
    check_layouts,
    column_from,
    column_of,
    lay_out,
)
from dsnb.elements.spec import BYTES, STR, TensorSpec
from dsnb.elements.structure import StructureMismatch
from dsnb.errors import DataLossError, InvalidArgumentError

RECORD = np.dtype([("x", "<i4"), ("y", "<f4", (2,))])


def received(column: Column, count: int) -> Column:
    """A column as its reader has it: out of one body of bytes."""
    (layout,), buffers, total = lay_out([column], 0, count)
    body = np.frombuffer(b"".join(map(_flat, buffers)), np.uint8)
    assert len(body) == total
    return column_from(layout, body, count)


def _flat(buffer: Any) -> bytes:
    return buffer if isinstance(buffer, bytes) else np.ascontiguousarray(buffer).tobytes()


@pytest.mark.parametrize(
    "values, dtype",
    [
        ([1, 2], "int64"),
        ([1.5, 2.5], "float64"),
        ([True, False], "bool"),
        ([1j, 2j], "complex128"),
        ([np.int8(1), np.int8(2)], "int8"),
        ([np.float16(1), np.float16(2)], "float16"),
        ([True, np.False_], "bool"),
        ([1, np.int64(2)], "int64"),
    ],
    ids=["int", "float", "bool", "complex", "int8", "float16", "bool and bool_", "int and int64"],
)
def test_numbers_are_one_dense_column_of_numpys_dtype(values: list[Any], dtype: str) -> None:
    column = column_of(values)
    assert isinstance(column, Dense)
    assert (column.spec, column.nbytes) == (TensorSpec((), dtype), len(values) * np.dtype(dtype).itemsize)
    assert list(received(column, len(values)).rows(0, len(values))) == values


def test_arrays_of_one_shape_are_dense_and_of_several_ragged() -> None:
    assert isinstance(column_of([np.zeros((2, 3)), np.ones((2, 3))]), Dense)
    column = column_of([np.zeros((2, 3)), np.ones((0, 3))])
    assert isinstance(column, Ragged)
    assert column.spec == TensorSpec((None, 3), np.float64), "the size that all share stays known"
    assert column.nbytes == 48


@pytest.mark.parametrize("kind", [str, np.str_], ids=["str", "np.str_"])
def test_text_has_any_length(kind: type) -> None:
    """NumPy's text scalars have a dtype as wide as each of them; `names[i]` gives such, and is no mismatch."""
    column = column_of([kind("a"), kind("bcd"), kind("")])
    assert isinstance(column, Text)
    assert column.spec == TensorSpec((), STR)
    assert list(received(column, 3).rows(0, 3)) == ["a", "bcd", ""]


@pytest.mark.parametrize("kind", [bytes, np.bytes_], ids=["bytes", "np.bytes_"])
def test_bytes_have_any_length(kind: type) -> None:
    column = column_of([kind(b"a"), b"bc\0\0", kind(b"")])
    assert column.spec == TensorSpec((), BYTES)
    assert list(received(column, 3).rows(0, 3)) == [b"a", b"bc\0\0", b""]


def test_arrays_of_text_share_the_widest_dtype() -> None:
    """A batch of text is as wide as its longest; the next one may be wider and is no mismatch."""
    arrays = [np.array(["a", "bc"]), np.array(["defg", "h"])]
    column = column_of(arrays)
    assert column.spec == TensorSpec((2,), "U4")
    rows = received(column, 2).rows(0, 2)
    assert all(map(np.array_equal, rows, arrays))
    assert not arrays[0].flags.writeable, "readers in this process get the very same"


@pytest.mark.parametrize(
    "values, odd",
    [
        ([np.zeros(2), np.zeros(2), np.zeros(2, np.float32)], 2),
        ([np.zeros(2), np.zeros((2, 1)), np.zeros(2)], 1),
        ([np.uint8(1), np.int64(2)], 1),
        ([1, 2.0], 1),
        ([np.timedelta64(1, "s"), np.timedelta64(1, "s"), np.timedelta64(1, "ms")], 2),
        ([np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00:00")], 1),
        ([b"a", "a"], 1),
    ],
    ids=["dtype", "rank", "uint8 and int64", "int and float", "time delta's unit", "date's unit", "bytes and str"],
)
def test_the_first_value_of_another_dtype_or_rank_is_named(values: list[Any], odd: int) -> None:
    with pytest.raises(StructureMismatch) as caught:
        column_of(values)
    assert caught.value.index == odd


@pytest.mark.parametrize(
    "value",
    [None, {1, 2}, object(), np.array([None]), 2**64, np.array(["a"], np.dtypes.StringDType())],
    ids=["None", "set", "object", "array of objects", "big int", "StringDType"],
)
def test_what_no_element_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        column_of([value, value])


@pytest.mark.parametrize("shape", [(4,), (COPY_BELOW,)], ids=["small", "large"])
def test_rows_are_read_only(shape: tuple[int, ...]) -> None:
    dense = received(column_of([np.zeros(shape), np.ones(shape)]), 2)
    ragged = received(column_of([np.zeros(shape), np.ones(shape[0] + 1)]), 2)
    for row in (*dense.rows(0, 2), *ragged.rows(0, 2)):
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 1


def test_arrays_become_read_only_when_they_are_laid_out() -> None:
    array = np.zeros(3)
    column_of([array])
    assert not array.flags.writeable


def _body_of(values: list[Any]) -> tuple[np.ndarray[Any, Any], Layout]:
    (layout,), buffers, total = lay_out([column_of(values)], 0, len(values))
    body = np.zeros(total, np.uint8)
    body[:] = np.frombuffer(b"".join(map(_flat, buffers)), np.uint8)
    return body, layout


@pytest.mark.parametrize(
    "values",
    [
        [np.zeros(8), np.ones(8)],
        [np.zeros(8), np.ones(9)],
        [np.zeros((), RECORD)[()], np.ones((), RECORD)[()]],
        [1, 2],
        ["a", "b"],
    ],
    ids=["dense", "ragged", "records", "numbers", "text"],
)
def test_a_small_row_does_not_hold_the_frame(values: list[Any]) -> None:
    """A sample that a user keeps must not keep the thousands that came with it."""
    body, layout = _body_of(values)
    gone = weakref.ref(body)
    column = column_from(layout, body, 2)
    kept = list(column.rows(0, 2))
    assert len(kept) == 2
    del body, column
    assert gone() is None


@pytest.mark.parametrize("sizes", [(COPY_BELOW, COPY_BELOW), (COPY_BELOW, COPY_BELOW + 8)], ids=["dense", "ragged"])
def test_a_large_row_is_a_view(sizes: tuple[int, ...]) -> None:
    body, layout = _body_of([np.zeros(size, np.uint8) for size in sizes])
    for row in column_from(layout, body, 2).rows(0, 2):
        assert np.shares_memory(row, body)


def test_records_keep_their_fields_and_cannot_be_written() -> None:
    values = [np.array((7, (1.5, 2.5)), RECORD)[()], np.array((8, (3.5, 4.5)), RECORD)[()]]
    rows = list(received(column_of(values), 2).rows(0, 2))
    assert rows == values
    assert rows[0]["x"] == 7
    with pytest.raises(ValueError, match="read-only"):
        rows[0]["x"] = 9


def test_every_column_begins_at_a_multiple_of_16_and_the_body_is_as_long_as_said() -> None:
    columns = [column_of(values) for values in (["a", "bcd"], [np.uint8(1)] * 2, [np.zeros(3), np.ones(2)], [1, 2])]
    layouts, buffers, total = lay_out(columns, 0, 2)
    assert [layout.offset % 16 for layout in layouts] == [0, 0, 0, 0]
    assert sum(len(_flat(buffer)) for buffer in buffers) == total == check_layouts(layouts, 2)


def test_a_part_of_a_column_is_laid_out_as_if_it_were_all() -> None:
    for values in ([1, 2, 3, 4], [np.zeros(n) for n in range(4)], ["a", "bc", "def", ""], [np.ones(3)] * 4):
        part, whole = lay_out([column_of(values)], 1, 3), lay_out([column_of(values[1:3])], 0, 2)
        assert part[0] == whole[0]
        assert b"".join(map(_flat, part[1])) == b"".join(map(_flat, whole[1]))


@pytest.mark.parametrize(
    "layout",
    [
        Layout("<f4", (2,), False, 0, 12),  # half an element
        Layout("<f4", (2,), False, 0, 0),
        Layout("<f4", (-2,), False, 0, 16),
        Layout("<f4", (2,), False, 8, 16),
        Layout("<f4", (2,), False, 16, 16),
        Layout("<f4", (1,), True, 0, 8),  # shorter than its table
        Layout("|S0", (), True, 0, 8),
    ],
    ids=["short", "empty", "negative", "unaligned", "behind a hole", "ragged without table", "text without table"],
)
def test_layouts_that_do_not_fit_together_are_found_before_memory_is_asked_for(layout: Layout) -> None:
    with pytest.raises(DataLossError):
        check_layouts([layout], 2)


@pytest.mark.parametrize("lengths", [(3, 4), (4, 5), (10, -2), (2**62, 2**62), (0, 0)], ids=str)
@pytest.mark.parametrize("ragged", [True, False], ids=["ragged", "text"])
def test_a_table_that_does_not_fit_its_data_is_no_column(lengths: tuple[int, int], ragged: bool) -> None:
    """Slices that reach too far would come out short without a word."""
    body = np.concatenate([np.array(lengths, np.int64).view(np.uint8), np.zeros(8, np.uint8)])
    layout = Layout("|u1", (1,), True, 0, 24) if ragged else Layout("|S0", (), True, 0, 24)
    with pytest.raises(DataLossError):
        column_from(layout, body, 2)
