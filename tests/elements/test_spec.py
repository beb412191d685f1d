"""Specs say what is known of an element's leaves, and survive being written down."""

from __future__ import annotations

import sys
from collections import namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from dsnb.elements.spec import (
    BYTES,
    STR,
    TensorSpec,
    compatible,
    dtype_from_text,
    dtype_to_text,
    leaf_spec,
    spec_from_json,
    spec_of,
    spec_rule,
    spec_to_json,
)
from dsnb.errors import FailedPreconditionError, InvalidArgumentError

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - what users have


def test_a_spec_reads_as_it_is_written() -> None:
    assert repr(TensorSpec((None, 28), np.float32)) == "TensorSpec((None, 28), float32)"
    assert repr(TensorSpec((), bytes)) == "TensorSpec((), bytes)"
    assert repr(TensorSpec((), str)) == "TensorSpec((), str)"


def test_negative_dimensions_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`shape` is -1") as caught:
        TensorSpec((-1, 2))
    assert "None" in caught.value.hint


def test_an_unknown_dimension_accepts_every_size_and_a_known_one_its_own() -> None:
    assert TensorSpec((None, 2)).accepts(TensorSpec((7, 2)))
    assert not TensorSpec((7, 2)).accepts(TensorSpec((None, 2)))
    assert not TensorSpec((None, 2)).accepts(TensorSpec((7, 3)))
    assert not TensorSpec((None,)).accepts(TensorSpec((7, 2)))
    assert not TensorSpec((None,), np.float32).accepts(TensorSpec((7,), np.float64))


@pytest.mark.parametrize(
    "leaf, spec",
    [
        (1, TensorSpec((), np.int64)),
        (True, TensorSpec((), np.bool_)),
        (1.0, TensorSpec((), np.float64)),
        (1j, TensorSpec((), np.complex128)),
        (b"a", TensorSpec((), BYTES)),
        ("a", TensorSpec((), STR)),
        (np.zeros((2, 0), np.float16), TensorSpec((2, 0), np.float16)),
        (np.datetime64("2020-01-01"), TensorSpec((), "datetime64[D]")),
    ],
    ids=["int", "bool", "float", "complex", "bytes", "str", "array", "date"],
)
def test_leaves_have_the_spec_that_numpy_gives_them(leaf: Any, spec: TensorSpec) -> None:
    assert leaf_spec(leaf) == spec


def test_what_is_no_leaf_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="None by itself") as caught:
        leaf_spec(None)
    assert "return something in every case" in caught.value.hint


def test_a_spec_has_the_elements_structure() -> None:
    element = (Point(1, [b"x"]), {"a": np.zeros(3)})
    assert spec_of(element) == (
        Point(TensorSpec((), np.int64), [TensorSpec((), BYTES)]),
        {"a": TensorSpec((3,), np.float64)},
    )


def test_only_specs_may_stand_in_a_spec() -> None:
    assert spec_rule("element_spec", (TensorSpec(),)) == (TensorSpec(),)
    with pytest.raises(InvalidArgumentError, match="float32"):
        spec_rule("element_spec", {"a": TensorSpec(), "b": np.float32})


def test_specs_are_compatible_if_sizes_are_all_that_is_unknown() -> None:
    assert compatible((TensorSpec((None, 2)),), (TensorSpec((5, 2)),))
    assert not compatible((TensorSpec((4, 2)),), (TensorSpec((5, 2)),))
    assert not compatible((TensorSpec((4,)),), (TensorSpec((4, 1)),))
    assert not compatible(TensorSpec((4,)), TensorSpec((4,), np.int8))
    assert not compatible(TensorSpec(), (TensorSpec(),))
    assert not compatible({"a": TensorSpec()}, {"b": TensorSpec()})


RECORDS = [
    np.dtype([("x", "<i4"), ("y", ">f8", (2, 3))]),
    np.dtype([("x", "<i4"), ("inner", [("name", "S5"), ("when", "<M8[ms]")])]),
    np.dtype([("a", "i1"), ("b", "<i8")], align=True),
    np.dtype({"names": ["late", "early"], "formats": ["<f4", "<i4"], "offsets": [4, 0], "itemsize": 12}),
]


@pytest.mark.parametrize("dtype", RECORDS, ids=["shaped field", "nested", "aligned", "out of order"])
def test_a_records_dtype_keeps_its_fields(dtype: np.dtype[Any]) -> None:
    """NumPy's short notation of a record is its size alone."""
    assert dtype_from_text(dtype_to_text(dtype)) == dtype


@given(arrays.scalar_dtypes() | arrays.array_dtypes() | arrays.byte_string_dtypes() | arrays.nested_dtypes())
def test_every_dtype_survives_being_written_down(dtype: np.dtype[Any]) -> None:
    if dtype.subdtype is None:  # an array's dtype never has one: NumPy makes it a part of the shape
        assert dtype_from_text(dtype_to_text(dtype)) == dtype


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint2"])
def test_dtypes_of_another_package_go_by_their_names(name: str) -> None:
    """NumPy's notation of bfloat16 is "V2", which is that of any two bytes."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    assert dtype_to_text(dtype) == name
    assert dtype_from_text(name) == dtype
    record = np.dtype([("x", dtype, (2,)), ("y", "<i4")])
    assert dtype_from_text(dtype_to_text(record)) == record


def test_where_that_package_is_missing_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for text in ("bfloat16", dtype_to_text(np.dtype([("x", ml_dtypes.bfloat16)]))):
        with pytest.raises(FailedPreconditionError, match="elements of the dtype bfloat16 need the package ml_dtypes"):
            dtype_from_text(text)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        TensorSpec((None, 3), np.float16),
        (TensorSpec((), BYTES), {"ü": TensorSpec((), STR)}, [TensorSpec((2,), ">i4")]),
        Point(TensorSpec((), RECORDS[0]), TensorSpec((), "m8[us]")),
        (),
        (TensorSpec(), {}),
    ],
    ids=["unknown", "leaf", "nested", "named tuple", "empty", "empty part"],
)
def test_specs_survive_being_written_down(spec: Any) -> None:
    again = spec_from_json(spec_to_json(spec))
    assert again == spec
    assert type(again) is type(spec)
