from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.cache.recordings.frames import (
    decode_frame,
    digest_of,
    encode_frame,
    frames_from_run,
    merge_small_frames,
    nbytes_of,
    rows,
)
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError, InvalidArgumentError

Point = namedtuple("Point", "x y")  # noqa: PYI024 - as users have them
DATES = np.array(["2020-01-01", "2021-05-06", "2020-01-01"], "M8[D]")
RECORDS = np.array([(1, 2.0), (3, 4.0), (5, 6.0)], [("a", "i4"), ("b", "f8")])

RUNS: dict[str, list[Any] | np.ndarray[Any, Any]] = {
    "ints": [1, 2, 3],
    "bools": [True, False],
    "range": np.arange(5),
    "rows": np.arange(12.0).reshape(3, 4),
    "arrays": [np.full((2, 2), i, np.float32) for i in range(4)],
    "not contiguous": [np.arange(6).reshape(2, 3).T, np.ones((3, 2), np.int64)],
    "ragged": [np.arange(i) for i in range(4)],
    "ragged matrices": [np.ones((i, 2)) for i in range(3)],
    "text": ["a", "", "äöü", "\ud800"],
    "bytes": [b"a", b"", b"\0\0"],
    "tuples": [(i, f"{i}") for i in range(3)],
    "dicts": [{"x": np.ones(2) * i, "y": [i, i]} for i in range(3)],
    "named": [Point(i, -i) for i in range(3)],
    "no leaves": [(), ()],
    "some without leaves": [(1, {}), (2, {})],
    "dates": list(DATES),
    "records": list(RECORDS),
    "scalars": [np.float32(1), np.float32(2)],
    "empty arrays": [np.zeros((0, 3)), np.zeros((0, 3))],
}


def stored(frame: Frame) -> np.ndarray[Any, Any]:
    buffers, nbytes, digest = encode_frame(frame)
    data = np.frombuffer(b"".join(map(bytes, buffers)), np.uint8)
    assert len(data) == nbytes
    assert digest_of(data) == digest
    return data


def same(mine: Any, its: Any) -> None:
    assert type(mine) is type(its) or not isinstance(mine, tuple | dict | list)
    if isinstance(mine, dict):
        assert mine.keys() == its.keys()
        for key in mine:
            same(mine[key], its[key])
    elif isinstance(mine, tuple | list):
        assert len(mine) == len(its)
        for a, b in zip(mine, its, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(its))
        if isinstance(mine, np.ndarray | np.generic):
            assert mine.dtype == its.dtype


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_elements_are_read_as_they_were_written(run: Any) -> None:
    (frame,) = frames_from_run(run)
    back = decode_frame(stored(frame))
    found = list(rows(back, 0, back.count))
    assert len(found) == len(run)
    for mine, its in zip(run, found, strict=True):
        same(mine, its)
    for mine, its in zip(found, rows(frame, 0, frame.count), strict=True):
        same(mine, its)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_part_can_be_read(run: Any) -> None:
    (frame,) = frames_from_run(run)
    back = decode_frame(stored(frame))
    for mine, its in zip(run[1:2], rows(back, 1, 2), strict=True):
        same(mine, its)


def test_what_is_read_are_views_that_cannot_be_written() -> None:
    data = stored(frames_from_run([np.full((4, 4), i) for i in range(3)])[0])
    for element in rows(decode_frame(data), 0, 3):
        assert np.shares_memory(element, data)
        assert not element.flags.writeable


def test_each_reader_gets_dicts_and_lists_of_its_own() -> None:
    (frame,) = frames_from_run([{"x": 1}, {"x": 2}])
    rows(frame, 0, 2)[0]["y"] = 3
    assert rows(frame, 0, 2)[0] == {"x": 1}


def test_elements_that_are_not_alike_lie_in_several_frames() -> None:
    run = [np.int64(1), np.float32(2), np.float32(3), np.ones(2), np.ones((2, 2))]
    frames = frames_from_run(run)
    found = [element for frame in frames for element in rows(frame, 0, frame.count)]
    assert len(frames) >= 4
    for mine, its in zip(run, found, strict=True):
        same(mine, its)


def test_what_nothing_can_hold_is_its_own_error() -> None:
    with pytest.raises(InvalidArgumentError, match="object"):
        frames_from_run([object()])


@given(
    st.lists(st.sampled_from(["ints", "range", "arrays", "ragged", "text", "dicts"]), max_size=8), st.integers(1, 99)
)
def test_joining_keeps_every_element_in_its_place(names: list[str], most: int) -> None:
    frames = [frame for name in names for frame in frames_from_run(RUNS[name])]
    wanted = [element for frame in frames for element in rows(frame, 0, frame.count)]
    together = merge_small_frames(frames, most)
    found = [element for frame in together for element in rows(decode_frame(stored(frame)), 0, frame.count)]
    assert len(found) == len(wanted)
    for mine, its in zip(wanted, found, strict=True):
        same(mine, its)


def test_alike_frames_are_joined_up_to_a_size() -> None:
    frames = [frame for _ in range(10) for frame in frames_from_run([np.zeros(100)])]
    assert [frame.count for frame in merge_small_frames(frames, 3 * 800)] == [3, 3, 3, 1]
    assert nbytes_of(frames) == 8000


def test_arrays_of_another_size_begin_another_frame() -> None:
    assert len(merge_small_frames([*frames_from_run([np.zeros(4)]), *frames_from_run([np.zeros(3)])])) == 2


@given(st.integers(min_value=0), st.integers(1, 255))
def test_a_changed_byte_changes_the_digest(index: int, change: int) -> None:
    data = stored(frames_from_run([(np.arange(3), "ab")])[0]).copy()
    before = digest_of(data)
    data[index % len(data)] ^= change
    assert digest_of(data) != before


@given(st.binary(max_size=300))
def test_what_is_no_frame_is_damaged(data: bytes) -> None:
    with pytest.raises(DataLossError):
        decode_frame(np.frombuffer(data, np.uint8))


@given(st.integers(0, 200))
def test_a_frame_that_was_cut_off_is_damaged(length: int) -> None:
    data = stored(frames_from_run([(np.arange(30), "ab")])[0])
    with pytest.raises(DataLossError):
        decode_frame(data[: min(length, len(data) - 1)])
