"""An element that is laid out in a room has its leaves where its frame will have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.allocation import allocate_leaves, copy_into
from dsnb.elements.columns import column_of, lay_out
from tests.pipeline.driving import Rooms, no_room


@given(st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_pieces_lie_as_the_columns_of_a_frame(sizes: list[int]) -> None:
    room = Rooms()
    found: list[Any] = allocate_leaves(room, sizes)
    for piece in found:
        piece[:] = len(piece)
    columns = [column_of([piece]) for piece in found]
    _, buffers, nbytes = lay_out(columns, 0, 1)
    assert room.pieces[0].nbytes == nbytes
    assert b"".join(map(bytes, buffers)) == room.pieces[0].tobytes()


def test_where_there_is_no_room_there_is_no_piece() -> None:
    assert allocate_leaves(no_room, [5, 6]) == allocate_leaves(None, [5, 6]) == [None, None]


@pytest.mark.parametrize("dtype", ["u1", ">i4", "f8", "c16", "M8[s]", "U3", [("a", "i2"), ("b", "f4")]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_copy_in_a_room_is_the_array(dtype: Any, order: Any) -> None:
    array = np.arange(12).astype("i2").reshape(3, 4).astype(dtype, order=order)
    room = Rooms()
    copy = copy_into(room, array)
    np.testing.assert_array_equal(copy, array)
    assert copy.dtype == array.dtype
    assert room.hold(copy)
    np.testing.assert_array_equal(copy_into(no_room, array), array)
