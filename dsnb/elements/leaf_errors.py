"""Error texts for values that are not valid leaves: what the value is, and how to convert it."""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import numbers
import sys
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from dsnb.errors import InvalidArgumentError

_GENERAL = "return NumPy arrays, numbers, bytes or str, nested in tuples, lists, dicts or dataclasses"


def invalid_leaf_error(value: Any, cause: str = "") -> InvalidArgumentError:
    """The error for a leaf that is neither a number nor text nor an array of them.

    Args:
        value: The leaf.
        cause: Why NumPy could not convert it, if known.

    Example:
        >>> print(invalid_leaf_error({1, 2}))
        an element contains a value of type set, which is not supported
          dsnb: this error takes its place in the data; reading continues with the next
          try:  return its members in an order of your choice: np.array(sorted(x))
    """
    return InvalidArgumentError(
        f"an element contains {describe_value(value)}, which is not supported{f': {cause}' if cause else ''}",
        did="this error takes its place in the data; reading continues with the next",
        hint=advice(value),
    )


def is_masked(value: Any) -> bool:
    """Whether a value is a masked array, which would lose its mask as a plain array."""
    # NumPy imports its `ma` late. Importing it here would do so at the first element, and a process that another thread
    # forks meanwhile could never import it: it would wait for the lock of a thread that it does not have.
    masked_array = getattr(sys.modules.get("numpy.ma.core"), "MaskedArray", None)
    return masked_array is not None and isinstance(value, masked_array)


def describe_value(value: Any) -> str:
    """A value in words, as in "a value of type set"."""
    if is_masked(value):
        return "a masked array"
    if isinstance(value, np.ndarray):
        return "an array of objects" if value.dtype.kind == "O" else f"an array of the dtype {value.dtype}"
    return "None by itself" if value is None else f"a value of type {type(value).__name__}"


def advice(value: Any) -> str:
    """How to convert a value to a valid leaf, by its type."""
    if isinstance(value, np.ndarray):
        return _array_advice(value)
    for kinds, text in _BY_TYPE:
        if isinstance(value, kinds):
            return text
    for attribute, text in _BY_ATTRIBUTE:
        if hasattr(value, attribute):
            return text
    return _GENERAL


def _array_advice(array: np.ndarray[Any, Any]) -> str:
    if is_masked(array):
        return "return the values and the mask, (x.data, np.ma.getmaskarray(x)), or x.filled(...)"
    if array.dtype.kind == "T":
        return 'convert it to text of a fixed width: x.astype("U")'
    kinds = {type(item) for item in array.flat}
    if kinds and all(issubclass(kind, (str, bytes)) for kind in kinds):
        return "convert it to text of a fixed width: x.astype(str), or x.astype(bytes) for bytes"
    if any(issubclass(kind, (np.ndarray, list, tuple)) for kind in kinds):
        return (
            "return rows of different lengths one by one (flat_map), padded to one length, or as one array and lengths"
        )
    if kinds and all(issubclass(kind, numbers.Number) or kind is np.bool_ for kind in kinds):
        return "convert it to numbers: x.astype(np.float64)"
    return _GENERAL


_BY_TYPE: list[tuple[Any, str]] = [
    (
        type(None),
        "return something in every case: a function without `return` gives None; parts of elements may be None",
    ),
    (int, "an int of more than 64 bits: return a float, or its digits as str"),
    (dt.timedelta, "convert it: np.timedelta64(x)"),
    (dt.date, "convert it: np.datetime64(x)"),
    ((decimal.Decimal, fractions.Fraction), "convert it: float(x), or str(x) to keep every digit"),
    (AbstractSet, "return its members in an order of your choice: np.array(sorted(x))"),
    (Iterator, "return what it yields, list(x); to make several elements of one use `flat_map`"),
]
_BY_ATTRIBUTE = [
    ("as_numpy_iterator", "read a dataset where it is made: flat_map(lambda window: window.batch(n)) behind `window`"),
    ("detach", "convert a tensor: x.detach().cpu().numpy()"),
    ("to_numpy", "convert it: x.to_numpy()"),
    ("numpy", "convert a tensor: x.numpy()"),
]
