"""Elements leave a pipeline as NumPy, read-only, all of one structure."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.to_numpy import NumpyConverter, numpy_leaf

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - the test needs an untyped one


def convert(run: Any) -> list[Any]:
    out, failure, rest = NumpyConverter().convert(run)
    assert failure is None
    assert rest == []
    return out


@pytest.mark.parametrize(
    "value, kind",
    [(1, np.int64), (1.5, np.float64), (True, np.bool_), (1j, np.complex128), (np.float32(1), np.float32)],
    ids=["int", "float", "bool", "complex", "numpy"],
)
def test_numbers_become_numpy_scalars(value: Any, kind: type) -> None:
    assert [type(x) for x in convert([value, value])] == [kind, kind]
    assert type(numpy_leaf(value)) is kind


@pytest.mark.parametrize("value", ["a", b"a\0"], ids=repr)
def test_text_stays(value: Any) -> None:
    assert convert([value]) == [value]


def test_runs_that_are_arrays_are_taken_apart_into_scalars_rows_and_text() -> None:
    assert [type(x) for x in convert(np.arange(2))] == [np.int64, np.int64]
    assert convert(np.array(["a", "b"])) == ["a", "b"]
    assert type(convert(np.array(["a"]))[0]) is str
    assert [row.tolist() for row in convert(np.arange(4).reshape(2, 2))] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("run", [[np.zeros(2)], np.zeros((1, 2)), [(np.zeros(2), 1)], [{"x": np.zeros(2)}]], ids=repr)
def test_arrays_are_read_only(run: Any) -> None:
    element = convert(run)[0]
    array = element[0] if isinstance(element, tuple) else element["x"] if isinstance(element, dict) else element
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "wrap",
    [lambda x: (x, "a"), lambda x: [x], lambda x: {"k": x}, lambda x: Point(x, x)],
    ids=["tuple", "list", "dict", "named tuple"],
)
def test_structures_stay_and_their_leaves_are_converted(wrap: Any) -> None:
    element = convert([wrap(1), wrap(2)])[1]
    assert element == wrap(2)
    assert type(element) is type(wrap(2))
    leaf = element["k"] if isinstance(element, dict) else element[0]
    assert type(leaf) is np.int64


def test_numbers_of_several_types_are_converted_one_by_one() -> None:
    assert [type(x) for x in convert([1, 2.5, np.float32(1)])] == [np.int64, np.float64, np.float32]


@pytest.mark.parametrize(
    "odd, said",
    [
        (object(), "object"),
        (None, "None by itself"),
        (np.array([None]), "array of objects"),
        (2**70, "64 bits"),
        ((1, 2), "built as"),
        ({"a": 1}, "built as"),
    ],
    ids=["object", "None", "object array", "big int", "tuple", "dict"],
)
def test_what_is_no_element_fails_in_its_place(odd: Any, said: str) -> None:
    outlet = NumpyConverter()
    out, failure, rest = outlet.convert([1, odd, 3])
    assert (out, rest) == ([1], [3])
    assert isinstance(failure, InvalidArgumentError)
    assert said in failure.what
    assert failure.hint
    assert outlet.convert(rest) == ([3], None, [])


def test_the_first_element_s_structure_holds_for_later_runs() -> None:
    outlet = NumpyConverter()
    outlet.convert([(1, 2)])
    assert isinstance(outlet.convert([(1, 2, 3)])[1], InvalidArgumentError)


def test_an_element_without_leaves_goes_through() -> None:
    assert convert([(), ()]) == [(), ()]
