"""What leaves a pipeline is laid out where its frame will be; what others change, or user code sees, is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dsnb.elements.structure import flatten
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from tests.pipeline.driving import Rooms, context, drain, no_room, run

ROW = 16 * 1024
BUFFER = np.zeros(ROW, np.uint8)


def row(number: Any) -> Any:
    return np.full(ROW, number, np.uint8)


def again(number: Any) -> Any:
    """An array that the user keeps, and writes to for the next element."""
    BUFFER[:] = number
    return BUFFER


def kept() -> Iterator[Any]:
    for number in range(6):
        yield again(number)


def short(number: Any) -> Any:
    return np.full(ROW - int(number), number, np.uint8)


ROWS = Dataset.range(6).map(row)
ROWS_KEPT = [row(number) for number in range(6)]
LAID_OUT = {
    "batch": ROWS.batch(3),
    "padded_batch": Dataset.range(6).map(short).padded_batch(3),
    "leaves beside one another": Dataset.range(6).map(lambda x: {"x": row(x), "label": x, "y": (row(x),)}).batch(3),
    "an array that the user keeps": Dataset.range(6).map(again),
    "what a generator yields": Dataset.from_generator(kept),
    "by several threads": Dataset.range(6).map(lambda x: again(x) if x < 0 else ROWS_KEPT[x], num_parallel_calls=2),
    "what is handed on": ROWS.batch(2).repeat(2).skip(1).take(4).prefetch(2),
}
ELSEWHERE = {
    "what a function changes": ROWS.batch(3).map(lambda x: x + 1),
    "what a function is asked about": ROWS.batch(3).filter(lambda x: True),
    "what waits to be mixed": ROWS.batch(2).shuffle(3, seed=1),
    "what becomes part of another": ROWS.batch(3).batch(2),
    "what nobody else refers to": Dataset.range(6).map(row),
    "small rows, which are joined": Dataset.range(600).map(lambda x: np.full(16, x)).batch(200),
}


def leaves(elements: list[Any]) -> list[Any]:
    return [leaf for element in elements for leaf in flatten(element)]


def given_by(dataset: Dataset, room: Any) -> list[Any]:
    stage = dataset.operation.build(replace(context(), allocate=room))
    try:
        return drain(stage, [2])
    finally:
        stage.close()


@pytest.mark.parametrize("kind", LAID_OUT | ELSEWHERE)
def test_elements_are_the_same_wherever_they_are_laid_out(kind: str) -> None:
    dataset = (LAID_OUT | ELSEWHERE)[kind]
    expected = leaves(run(dataset))
    for room in (Rooms(), no_room):
        found = leaves(given_by(dataset, room))
        assert len(found) == len(expected)
        for leaf, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(leaf, want)
            assert leaf.dtype == want.dtype


@pytest.mark.parametrize("kind", LAID_OUT)
def test_what_leaves_the_pipeline_lies_in_the_room(kind: str) -> None:
    room = Rooms()
    large = [leaf for leaf in leaves(given_by(LAID_OUT[kind], room)) if leaf.nbytes >= ROW]
    assert large
    assert room.hold(*large)


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_does_not_leave_as_it_is_lies_elsewhere(kind: str) -> None:
    room = Rooms()
    assert given_by(ELSEWHERE[kind], room)
    assert not room.pieces or kind == "what becomes part of another"


def test_the_batch_of_batches_is_in_the_room_and_they_are_not() -> None:
    room = Rooms()
    (batch,) = given_by(ELSEWHERE["what becomes part of another"], room)
    assert len(room.pieces) == 1
    assert room.hold(batch)


def test_an_element_that_does_not_fit_is_left_out_as_elsewhere() -> None:
    odd = Dataset.range(4).map(lambda x: row(x) if x != 1 else np.zeros((2, ROW)))
    batch, error = sorted(given_by(odd.batch(3), Rooms()), key=lambda found: isinstance(found, Exception))
    assert batch[:, 0].tolist() == [0, 2, 3]
    assert isinstance(error, InvalidArgumentError)


@pytest.mark.slow
@given(st.lists(st.sampled_from(["u1", ">i2", "f4", "M8[s]", "U2"]), min_size=1, max_size=4), st.integers(1, 3))
def test_leaves_of_any_dtypes_lie_beside_one_another(dtypes: list[str], size: int) -> None:
    def element(number: Any) -> Any:
        return tuple(np.full(ROW, int(number)).astype(dtype) for dtype in dtypes)

    dataset = Dataset.range(3).map(element).batch(size)
    for found, want in zip(leaves(given_by(dataset, Rooms())), leaves(run(dataset)), strict=True):
        np.testing.assert_array_equal(found, want)
        assert found.dtype == want.dtype
