"""Frames hold runs of elements; an element that does not fit is an error in its own place, and in no other's."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.frame import Frame, Schema, frames_of
from dsnb.errors import InvalidArgumentError

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - what users have


def outcomes(run: Any, schema: Schema | None = None) -> list[Any]:
    """What a reader gets for each element of a run, an error as its class."""
    out: list[Any] = []
    for part in frames_of(run, schema):
        out += part.elements(0, part.count) if isinstance(part, Frame) else [type(part)]
    return out


def frame_of(run: Any, schema: Schema | None = None) -> Frame:
    (frame,) = frames_of(run, schema)
    assert isinstance(frame, Frame), frame
    return frame


def test_a_run_that_agrees_is_one_frame() -> None:
    frame = frame_of([(np.zeros(n, np.float32), n, "a" * n) for n in range(100)])
    assert frame.count == 100
    assert frame.nbytes == 99 * 50 * 4 + 100 * 8 + 99 * 50, "the sum of the leaves"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("row", [np.float32(3), np.arange(4, dtype=np.float32), np.ones((2, 0), np.float32)])
def test_a_row_of_an_array_stands_behind_others_like_it_and_can_only_be_read(row: Any, packed: bool) -> None:
    rows = np.stack([row, row])
    (frame,) = frames_of(rows[1:], frame_of(rows).schema, packed=packed)
    assert isinstance(frame, Frame), frame
    assert (frame.count, frame.nbytes) == (1, row.nbytes)
    (element,) = frame.elements(0, 1)
    np.testing.assert_array_equal(element, row)
    assert element.dtype == row.dtype
    assert not element.flags.writeable
    assert rows.flags.writeable, "the array is its owner's"


@pytest.mark.parametrize("odd", [np.zeros((1, 4)), np.zeros((1, 4, 1), np.float32), np.zeros(1, np.float32)])
def test_a_row_of_another_dtype_or_rank_is_an_error_in_its_place(odd: Any) -> None:
    schema = frame_of(np.zeros((2, 4), np.float32)).schema
    (error,) = frames_of(odd, schema, packed=True)
    assert isinstance(error, InvalidArgumentError)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_an_error_stands_in_the_place_of_exactly_each_odd_element(odd: list[bool]) -> None:
    schema = frame_of([(0, b"")]).schema
    run: list[Any] = [[at] if is_odd else (at, b"x" * at) for at, is_odd in enumerate(odd)]
    wanted = [InvalidArgumentError if is_odd else run[at] for at, is_odd in enumerate(odd)]
    assert outcomes(run, schema) == wanted


@pytest.mark.parametrize(
    "odd", [None, "text", 1.5, (1,), 2**70, {"a": 1}, np.zeros(1, np.int64), np.uint8(1)], ids=repr
)
@pytest.mark.parametrize("place", [1, 4, 6])
def test_the_first_element_says_what_the_others_are(odd: Any, place: int) -> None:
    run: list[Any] = list(range(7))
    run[place] = odd
    assert outcomes(run) == [*range(place), InvalidArgumentError, *range(place + 1, 7)]


def test_a_first_element_that_is_none_does_not_say_what_the_others_are() -> None:
    assert outcomes([None, None, 5, 6, "x", 7]) == [
        InvalidArgumentError, InvalidArgumentError, 5, 6, InvalidArgumentError, 7,
    ]  # fmt: skip


def test_the_error_names_both_specs() -> None:
    (error,) = frames_of([(np.zeros((2, 3)), "a")], frame_of([(np.zeros((4, 3), np.float32), "a")]).schema)
    assert isinstance(error, InvalidArgumentError)
    assert "(TensorSpec((2, 3), float64), TensorSpec((), str))" in str(error)
    assert "(TensorSpec((4, 3), float32), TensorSpec((), str))" in str(error)


def test_sizes_may_vary_between_frames_and_dtypes_and_ranks_may_not() -> None:
    schema = frame_of([np.zeros((2, 3))]).schema
    assert frame_of([np.zeros((5, 0))], schema).count == 1
    assert outcomes([np.zeros(2)], schema) == [InvalidArgumentError]
    assert outcomes([np.zeros((2, 3), np.float32)], schema) == [InvalidArgumentError]


def test_text_may_be_wider_than_the_first() -> None:
    schema = frame_of([np.array(["a", "b"])]).schema
    assert np.array_equal(frame_of([np.array(["abc", "d"])], schema).elements(0, 1)[0], ["abc", "d"])
    assert outcomes([np.array([b"a", b"b"])], schema) == [InvalidArgumentError], "bytes are no text"


def test_an_array_stands_for_its_rows() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    frame = frame_of(rows)
    assert (frame.count, frame.nbytes) == (4, 96)
    assert np.array_equal(frame.elements(1, 3), rows[1:3])
    assert not frame.elements(0, 1)[0].flags.writeable
    assert rows.flags.writeable, "the caller's own array stays as it was"


def test_an_array_of_objects_is_looked_at_one_by_one() -> None:
    """As bytes it would be a row of addresses."""
    assert outcomes(np.array([1, None, 3], object)) == [1, InvalidArgumentError, 3]


@pytest.mark.parametrize(
    "make",
    [lambda: {"a": [1]}, lambda: ([1], 2), lambda: [np.zeros(2)]],
    ids=["dict", "list in a tuple", "list"],
)
def test_no_reader_sees_what_another_one_did_to_its_element(make: Any) -> None:
    frame = frame_of([make(), make()])
    mine, yours = frame.elements(0, 2), frame.elements(0, 2)
    (mine[0]["a"] if isinstance(mine[0], dict) else mine[0] if isinstance(mine[0], list) else mine[0][0]).clear()
    assert repr(yours[0]) == repr(frame.elements(0, 1)[0]) == repr(yours[1])


def test_named_tuples_are_those_that_the_reader_knows() -> None:
    frame = frame_of([Point(1, 2)])
    (element,) = frame.elements(0, 1)
    assert type(element) is Point
    assert element == (1, 2)


@pytest.mark.parametrize("element", [(), {}, (1, {}), {"a": 1, "meta": {}}], ids=repr)
def test_elements_may_have_parts_without_leaves(element: Any) -> None:
    assert outcomes([element, element]) == [element, element]
