"""The leaves of elements as frameworks take them: which ones they take, and in which layout.

All frameworks take arrays and scalars of numbers. Text stays as it is: no framework has tensors of text. Dates and
records are refused, because any conversion would be a guess.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

import numpy as np

from dsnb.elements.leaf_errors import invalid_leaf_error
from dsnb.errors import FailedPreconditionError, InvalidArgumentError

Array = np.ndarray[Any, Any]

_DID: Final = "this error takes the element's place; reading continues with the next"
_ADVICE: Final = {
    "M": 'convert it in a `map`: x.astype("M8[s]").astype(np.int64), the seconds since 1970',
    "m": 'convert it in a `map`: x / np.timedelta64(1, "s"), in seconds',
    "f": "convert it in a `map`: x.astype(np.float64)",
    "c": "convert it in a `map`: x.astype(np.complex128)",
}


def load_framework(name: str) -> Any:
    """Import a framework.

    Raises:
        FailedPreconditionError: it is not installed; the hint is the line that installs it.
    """
    if importlib.util.find_spec(name) is None:
        raise FailedPreconditionError(
            f"this needs {name}, which is not installed here",
            did="nothing was read",
            hint=f"pip install 'dsnb[{name}]'",
        )
    return importlib.import_module(name)


def is_text(leaf: Any) -> bool:
    """Whether a leaf is text, or an array of text, which frameworks get as it is."""
    return isinstance(leaf, (str, bytes)) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "US")


def plain_layout(array: Array) -> Array:
    """Return an array that is contiguous, aligned and in the processor's byte order; the same one if it is already.

    Frameworks need that: torch refuses negative strides, and in-place operations on rows that share memory.

    Example:
        >>> plain_layout(np.arange(3)[::-1]).strides
        (8,)
    """
    if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def unsupported_leaf_error(leaf: Any, framework: str) -> InvalidArgumentError:
    """Return the error for a leaf that a framework has no type for, with the line that converts it.

    Example:
        >>> print(unsupported_leaf_error(np.datetime64("2026-01-01"), "torch"))
        an element contains a value of the dtype datetime64[D], which torch does not have
          dsnb: this error takes the element's place; reading continues with the next
          try:  convert it in a `map`: x.astype("M8[s]").astype(np.int64), the seconds since 1970
    """
    dtype = getattr(leaf, "dtype", None)
    if getattr(dtype, "hasobject", False):
        return invalid_leaf_error(leaf)
    if dtype is None:
        return InvalidArgumentError(
            f"an element contains a value of type {type(leaf).__name__}, which {framework} does not have",
            did=_DID,
            hint="read a window where it is made: flat_map(lambda window: window.batch(n))",
        )
    kind = "an array" if isinstance(leaf, np.ndarray) else "a value"
    if dtype.names:
        hint = "return its fields in a `map`: {name: x[name] for name in x.dtype.names}"
    else:
        hint = _ADVICE.get(dtype.kind, "convert it in a `map`, as in x.astype(np.float32)")
    return InvalidArgumentError(
        f"an element contains {kind} of the dtype {dtype}, which {framework} does not have", did=_DID, hint=hint
    )
