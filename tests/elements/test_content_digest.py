"""Digests of contents: equal for equal elements however they are kept, and different for all others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from dsnb.elements.content_digest import digest_of, frame_hashes, sum_of_digests
from dsnb.elements.frame import Frame, frames_of
from tests.support.element_hash import element_hash


class Pair(NamedTuple):
    a: Any
    b: Any


DIFFERENT = [
    1,
    1.0,
    True,
    "1",
    b"1",
    "",
    b"",
    (),
    [],
    (1,),
    [1],
    (1, 2),
    (2, 1),
    ((1,), 2),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    Pair(1, 2),
    ("ab", "c"),
    ("a", "bc"),
    np.zeros(0),
    np.zeros((0, 2)),
    np.zeros(6),
    np.zeros((2, 3)),
    np.zeros((3, 2)),
    np.zeros(6, np.float32),
    np.zeros(12, np.float32),
    np.array(["a", "b"]),
    np.array(["2026-11-26"], "datetime64[D]"),
    np.array(["2026-11-26"], "datetime64[s]"),
    np.zeros(2, [("x", "i4"), ("y", "f4")]),
]


def test_different_elements_have_different_hashes() -> None:
    assert len({element_hash(element) for element in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize(
    "one, other",
    [
        pytest.param(5, np.int64(5), id="scalar"),
        pytest.param(np.int64(5), np.array(5), id="array without dimensions"),
        pytest.param("é", np.str_("é"), id="str"),
        pytest.param(b"\xff", np.bytes_(b"\xff"), id="bytes"),
        pytest.param(np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy(), id="layout"),
        pytest.param(np.arange(10)[::2], np.array([0, 2, 4, 6, 8]), id="stride"),
    ],
)
def test_how_a_value_is_kept_does_not_matter(one: Any, other: Any) -> None:
    assert element_hash(one) == element_hash(other)


def test_a_digest_depends_on_what_came_how_often_and_on_nothing_else() -> None:
    a, b, c = (element_hash(text) for text in "abc")
    whole = digest_of([a, b, c])
    assert whole == digest_of([c, a, b]) == sum_of_digests([digest_of([b]), digest_of([a, c]), digest_of([])])
    assert len({whole, digest_of([a, b]), digest_of([a, b, c, c]), digest_of([a, b, c, a, a])}) == 4


RUNS = [
    pytest.param([1, 2, 3, 4], id="numbers"),
    pytest.param(np.arange(12.0).reshape(4, 3), id="rows of an array"),
    pytest.param([np.arange(n) for n in (0, 3, 3, 5)], id="sizes that differ"),
    pytest.param(["", "a", "é", "abc"], id="text"),
    pytest.param([b"", b"a", b"\0", b"abc"], id="bytes"),
    pytest.param([np.array(["a"] * n) for n in (1, 2, 2, 3)], id="arrays of text"),
    pytest.param([np.array([word, ""]) for word in ("a", "abc", "ab", "é")], id="arrays of text of several widths"),
    pytest.param([{"x": np.zeros(n), "y": (n, None)} for n in (1, 2, 2, 4)], id="structures"),
    pytest.param([()] * 4, id="no leaves"),
    pytest.param(np.arange(4).astype("datetime64[s]"), id="dates"),
    pytest.param(np.zeros(4, [("x", "i4"), ("y", "f4")]), id="records"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("run", RUNS)
def test_how_elements_are_divided_into_frames_does_not_matter(run: Any, packed: bool) -> None:
    frame = next(frames_of(run, None, packed=packed))
    assert isinstance(frame, Frame)
    together = frame_hashes(frame, 0, 4)
    assert together == frame_hashes(frame, 0, 1) + frame_hashes(frame, 1, 4) == [element_hash(one) for one in run]
