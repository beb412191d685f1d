"""What no element can hold is named, with what to do about that very kind of thing."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dsnb.elements.columns import column_of
from dsnb.elements.leaf_errors import invalid_leaf_error
from dsnb.elements.spec import spec_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from tests.pipeline.driving import outcomes
from tests.support.processes import PythonProcess

FIRST_ELEMENT = """
import sys, dsnb
elements = iter(dsnb.Dataset.range(100).map(lambda x: {{"x": x, "y": (str(x), b"z")}}){operation})
before = set(sys.modules)
next(elements)
print("READY", *sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("operation", [".batch(3)", ".shuffle(10)", ".cache()"])
def test_the_first_element_imports_nothing_whose_lock_a_forked_child_would_wait_for(operation: str) -> None:
    with PythonProcess(["-c", FIRST_ELEMENT.format(operation=operation)]) as process:
        assert process.wait_for_line("READY") == "READY"
        assert process.wait_for_exit() == 0


class Tensor:
    """As other libraries have them: they convert by a method, and NumPy cannot."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a device tensor to numpy")

    def detach(self) -> Any:
        return self


def rows(*lengths: int) -> Any:
    array = np.empty(len(lengths), object)
    array[:] = [np.zeros(length) for length in lengths]
    return array


REFUSED: dict[str, tuple[Any, str, str]] = {
    "None": (None, "None by itself", "without `return`"),
    "set": ({1, 2}, "type set", "sorted(x)"),
    "generator": ((x for x in ()), "type generator", "list(x)"),
    "datetime": (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "type datetime", "np.datetime64(x)"),
    "date": (dt.date(2020, 1, 1), "type date", "np.datetime64(x)"),
    "timedelta": (dt.timedelta(1), "type timedelta", "np.timedelta64(x)"),
    "Decimal": (Decimal("0.1"), "type Decimal", "float(x)"),
    "Fraction": (Fraction(1, 3), "type Fraction", "float(x)"),
    "text objects": (np.array(["a", "bc"], object), "array of objects", "x.astype(str)"),
    "number objects": (np.array([1, 2.5], object), "array of objects", "x.astype(np.float64)"),
    "rows": (rows(1, 2), "array of objects", "padded to one length"),
    "mixed objects": (np.array([1, "a"], object), "array of objects", "NumPy arrays"),
    "records of objects": (np.zeros(2, [("x", object)]), "an array of the dtype [('x', 'O')]", "NumPy arrays"),
    "StringDType": (np.array(["a"], np.dtypes.StringDType()), "StringDType", 'x.astype("U")'),
    "masked": (np.ma.array([1, 2], mask=[False, True]), "a masked array", "x.filled(...)"),
    "tensor": (Tensor(), "type Tensor", "x.detach().cpu().numpy()"),
    "window": (Dataset.range(3), "type Dataset", "window.batch(n)"),
    "object": (object(), "type object", "NumPy arrays"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_named_with_advice(kind: str) -> None:
    value, named, advice = REFUSED[kind]
    error = invalid_leaf_error(value)
    assert named in error.what
    assert advice in error.hint


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind != "window"])
def test_it_is_refused_where_it_leaves_a_pipeline_and_where_it_enters_a_frame(kind: str) -> None:
    value, named, advice = REFUSED[kind]
    (here,) = outcomes(Dataset.range(1).map(lambda _: (0, value) if value is not None else None))
    with pytest.raises(InvalidArgumentError) as there:
        column_of([value, value])
    for error in (here, there.value):
        assert isinstance(error, InvalidArgumentError)
        assert named in error.what
        assert advice in error.hint


@pytest.mark.parametrize("kind", ["masked", "text objects", "datetime"])
def test_it_has_no_spec(kind: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not supported"):
        spec_of(REFUSED[kind][0])


def test_a_window_that_is_sent_says_to_read_it_first() -> None:
    with pytest.raises(InvalidArgumentError, match="flat_map"):
        column_of([Dataset.range(3)])


def test_an_int_that_is_too_large_says_so() -> None:
    for error in (
        *outcomes(Dataset.range(1).map(lambda _: 2**64)),
        invalid_leaf_error(2**64, "it has more than 64 bits"),
    ):
        assert "64 bits" in str(error)
        assert "digits as str" in error.hint


def test_what_is_behind_it_comes() -> None:
    found = outcomes(Dataset.range(3).map(lambda x: {1} if x == 1 else x))
    assert [type(x).__name__ for x in found] == ["int64", "InvalidArgumentError", "int64"]
