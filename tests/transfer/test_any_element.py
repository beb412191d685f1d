"""Any structure of any dtypes goes through frames and messages, split anywhere, and comes out as it went in."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dsnb.elements.frame import Frame, Schema, frames_of
from dsnb.elements.spec import dtype_from_text, dtype_to_text, spec_from_json, spec_of, spec_to_json
from dsnb.elements.structure import structure_from_json, structure_of, structure_to_json
from dsnb.pipeline.engine.to_numpy import NumpyConverter
from dsnb.transfer.frame_codec import FrameSliceEncoder
from dsnb.transfer.protocol import FrameSlice
from tests.transfer.test_frame_codec import decoded, meaning

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - what users have


@dataclass
class Sample:
    """What users have, too."""

    image: Any
    label: Any


ADDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint2"]
DTYPES = (
    (arrays.scalar_dtypes() | arrays.array_dtypes(max_size=3) | arrays.nested_dtypes(max_leaves=3)).filter(
        lambda dtype: dtype.subdtype is None and dtype.itemsize > 0
    )
    | st.sampled_from(ADDED).map(lambda name: np.dtype(getattr(ml_dtypes, name)))
    | st.sampled_from([np.dtype([("a", ml_dtypes.bfloat16), ("b", "S3", (2,))]), np.dtype("V0"), np.dtype("M8[7s]")])
)


@dataclass(frozen=True)
class Leaf:
    """What all elements have at one place: the kind of a value; each draws values of its own."""

    values: Any


def array_of(data: st.DataObject, dtype: np.dtype[Any], rank: int) -> Any:
    """An array of any sizes, in C order, Fortran order, backwards, or every other row of one."""
    shape = data.draw(st.tuples(*[st.integers(0, 3)] * rank))
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    made = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    array = np.zeros(shape, dtype)
    if size and dtype.kind not in "bU" and dtype.names is None and dtype.char not in "gG":
        array = made.view(dtype).reshape(shape).copy()
    how = data.draw(st.sampled_from(["C", "F", "backwards", "stepped", "broadcast"]))
    if how == "F" and rank:
        return np.asfortranarray(array)
    if how == "backwards":
        return array[::-1] if rank else array
    if how == "stepped":
        return np.repeat(array, 2, axis=0)[::2] if rank else array
    return np.broadcast_to(array[:1], shape) if how == "broadcast" and rank and shape[0] else array


def leaf_of(data: st.DataObject) -> Leaf:
    kind = data.draw(st.sampled_from(["int", "float", "bool", "complex", "str", "bytes", "array", "array", "scalar"]))
    if kind in ("array", "scalar"):
        dtype = data.draw(DTYPES)
        rank = data.draw(st.integers(0, 3)) if kind == "array" else 0
        if kind == "scalar" and dtype.itemsize:
            return Leaf(lambda: array_of(data, dtype, 0)[()])
        return Leaf(lambda: array_of(data, dtype, rank))
    plain = {
        "int": st.integers(-(2**63), 2**63 - 1), "float": st.floats(), "bool": st.booleans(),
        "complex": st.complex_numbers(), "str": st.text(st.characters(), max_size=5), "bytes": st.binary(max_size=5),
    }[kind]  # fmt: skip
    return Leaf(lambda: data.draw(plain))


def shape_of(data: st.DataObject, depth: int = 0) -> Any:
    """A nest of `Leaf`s."""
    kinds = ["leaf", "leaf"] if depth > 2 else ["leaf", "tuple", "list", "dict", "named", "data", "none"]
    kind = data.draw(st.sampled_from(kinds[: -1 if not depth and depth <= 2 else None]))
    if kind == "leaf":
        return leaf_of(data)
    if kind == "none":
        return None
    if kind in ("named", "data"):
        parts = [shape_of(data, depth + 1) for _ in range(2)]
        return (Point if kind == "named" else Sample)(*parts)
    parts = [shape_of(data, depth + 1) for _ in range(data.draw(st.integers(0, 3)))]
    if kind == "dict":
        return {f"key {place}": part for place, part in enumerate(parts)}
    return parts if kind == "list" else tuple(parts)


def made(shape: Any) -> Any:
    """One element of a nest of `Leaf`s."""
    if isinstance(shape, Leaf):
        return shape.values()
    if isinstance(shape, Sample):
        return Sample(made(shape.image), made(shape.label))
    if isinstance(shape, dict):
        return {key: made(part) for key, part in shape.items()}
    if isinstance(shape, tuple):
        parts = [made(part) for part in shape]
        return Point(*parts) if isinstance(shape, Point) else tuple(parts)
    return [made(part) for part in shape] if isinstance(shape, list) else None


def same(mine: Any, its: Any) -> bool:
    """Whether what came is what went, in structure, dtypes, shapes and every bit that means something."""
    if isinstance(mine, Sample):
        return type(its) is Sample and same(mine.image, its.image) and same(mine.label, its.label)
    if isinstance(mine, dict):
        return list(mine) == list(its) and all(same(mine[key], its[key]) for key in mine)
    if isinstance(mine, (tuple, list)):
        return type(mine) is type(its) and len(mine) == len(its) and all(map(same, mine, its))
    if mine is None or isinstance(mine, (str, bytes)):
        return bool(mine == its)
    a, b = np.asarray(mine), np.asarray(its)
    if not a.ndim and a.dtype.kind in "US":
        return bool(a[()] == b[()])
    if not a.ndim and a.dtype.names is None and a.dtype.isbuiltin != 2:
        a = a.astype(a.dtype.newbyteorder("="))  # NumPy's scalars have no byte order
        b = b.astype(b.dtype.newbyteorder("="))
    if a.dtype.kind == "U":
        return a.shape == b.shape and bool(np.array_equal(a, b))  # one width for all of a column
    return a.dtype == b.dtype and a.shape == b.shape and (a.dtype.names is not None or meaning(a) == meaning(b))


def cut(data: st.DataObject, count: int) -> list[tuple[int, int]]:
    """A run of `count` in pieces."""
    places = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=3))})
    return list(pairwise(places))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_run_of_elements_comes_out_as_it_went_in(data: st.DataObject) -> None:
    shape = shape_of(data)
    run = [made(shape) for _ in range(data.draw(st.integers(1, 4)))]
    came: list[Any] = []
    schema: Schema | None = None
    for first, end in cut(data, len(run)):
        for frame in frames_of(run[first:end], schema):
            assert isinstance(frame, Frame), frame
            schema = schema or frame.schema
            for start, stop in cut(data, frame.count):
                messages = list(FrameSliceEncoder("task").encode(FrameSlice(frame, start, start, stop - start, 1)))
                came += decoded(messages).elements()
    assert len(came) == len(run)
    assert all(map(same, run, came))
    (here, failure, rest) = NumpyConverter().convert(run)
    assert (failure, rest) == (None, [])
    assert all(map(same, came, here)), "the same as without a service"


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_spec_and_structure_travels_as_text(data: st.DataObject) -> None:
    element = made(shape_of(data))
    assert spec_from_json(spec_to_json(spec_of(element))) == spec_of(element)
    assert structure_from_json(structure_to_json(structure_of(element))) == structure_of(element)


@given(DTYPES)
def test_any_dtype_travels_as_text(dtype: np.dtype[Any]) -> None:
    assert dtype_from_text(dtype_to_text(dtype)) == dtype
