"""`TensorSpec` and element specs: shapes and dtypes of an element's leaves, known before any element is produced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from dsnb.arguments import checked, each, instance, integer, optional, short_repr
from dsnb.elements.leaf_errors import invalid_leaf_error, is_masked
from dsnb.elements.structure import Structure, flatten, rebuild, structure_from_json, structure_of, structure_to_json
from dsnb.errors import FailedPreconditionError, InvalidArgumentError

BYTES = np.dtype("S")
"""The dtype of a leaf of variable-length `bytes`."""
STR = np.dtype("U")
"""The dtype of a leaf of variable-length `str`."""

_ADDED = 2
"""The value of `dtype.isbuiltin` for a dtype that another package registered."""
_ADDED_NAMES = re.compile(r"bfloat16|float[468]_e\w+|u?int[124]|b?complex32")
"""Names of the dtypes of ml_dtypes. Their `dtype.str` is ambiguous, as in "V2"."""


_shape: Final = each(
    optional(integer(0, hint="pass 0 or more for each dimension, None for an unknown one")),
    "pass a tuple with the size of each dimension, as in (28, 28); () for a single value",
)


def _dtype(name: str, value: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(value)
    except Exception as error:  # noqa: BLE001 - NumPy raises many kinds for what it cannot read
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)}, which NumPy does not take for a dtype: {error}",
            hint='pass a dtype, as in np.float32 or "float32"; bytes and str for text of any length',
        ) from None
    if found.hasobject:
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)}: elements cannot contain Python objects",
            hint="pass a dtype of numbers or text",
        )
    return found


def _spec(name: str, value: Any) -> TensorSpec:
    rule = instance(TensorSpec, hint="pass dsnb.TensorSpec(shape, dtype)")
    return rule(name, value)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """Shape and dtype of one leaf.

    Args:
        shape: One entry for each dimension; `None` if its size varies between elements.
        dtype: Anything that NumPy accepts as a dtype. `bytes` and `str` stand for values of any length.

    Example:
        >>> TensorSpec((None, 28), np.float32)
        TensorSpec((None, 28), float32)
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    @checked(shape=_shape, dtype=_dtype)
    def __init__(self, shape: Iterable[int | None] = (), dtype: DTypeLike = np.float64) -> None:
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", np.dtype(dtype))

    def __repr__(self) -> str:
        return f"TensorSpec({self.shape}, {dtype_name(self.dtype)})"

    @checked(other=_spec)
    def accepts(self, other: TensorSpec) -> bool:
        """Whether each value that matches `other` matches this spec too."""
        return (
            self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(mine is None or mine == its for mine, its in zip(self.shape, other.shape, strict=True))
        )


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The dtype as a user writes it: `bytes` and `str` for values of any length."""
    if dtype == BYTES:
        return "bytes"
    return "str" if dtype == STR else str(dtype)


def dtype_to_text(dtype: np.dtype[Any]) -> str:
    """The dtype as text: NumPy's notation, or for records JSON with all fields.

    Example:
        >>> dtype_to_text(np.dtype(np.float32))
        '<f4'
    """
    # The `str` of a record dtype is its size without its fields, as in "|V8".
    return _short_text(dtype) if dtype.names is None else json.dumps(_plain_dtype(dtype), separators=(",", ":"))


@lru_cache(maxsize=256)
def _short_text(dtype: np.dtype[Any]) -> str:
    """NumPy's notation; for dtypes of other packages (bfloat16 of ml_dtypes) the name."""
    return dtype.name if dtype.isbuiltin == _ADDED else dtype.str


def dtype_from_text(text: str) -> np.dtype[Any]:
    """The dtype that `dtype_to_text` wrote.

    Raises:
        FailedPreconditionError: the dtype belongs to ml_dtypes, which is missing here or too old.
        TypeError: the text names no dtype.
    """
    if text.startswith("{"):
        return _dtype_of(json.loads(text))
    own = _own_dtype(text)
    return _added_dtype(text) if own is None else own


@lru_cache(maxsize=256)
def _own_dtype(text: str) -> np.dtype[Any] | None:
    """NumPy's dtype of that name, or None for one of ml_dtypes. Cached: it is called for each frame slice received."""
    return None if _ADDED_NAMES.fullmatch(text) else np.dtype(text)


def _added_dtype(name: str) -> np.dtype[Any]:
    try:
        added: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
    except (ImportError, AttributeError) as error:
        raise FailedPreconditionError(
            f"elements of the dtype {name} need the package ml_dtypes, which this process does not have or has too old",
            hint="pip install --upgrade ml_dtypes where they are read; or x.astype(np.float32) in the pipeline",
        ) from error
    return added


def _plain_dtype(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_plain_dtype(base), list(shape)]
    if dtype.names is None or dtype.fields is None:
        return _short_text(dtype)
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_plain_dtype(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
    }


def _dtype_of(plain: Any) -> np.dtype[Any]:
    form = dtype_from_text(plain) if isinstance(plain, str) else plain
    if isinstance(plain, list):
        form = (_dtype_of(plain[0]), tuple(plain[1]))
    elif isinstance(plain, dict):
        form = {**plain, "formats": [_dtype_of(field) for field in plain["formats"]]}
    dtype: np.dtype[Any] = np.dtype(form)
    return dtype


def leaf_spec(leaf: Any) -> TensorSpec:
    """The spec of one leaf; Python numbers have the dtypes int64, float64, complex128 and bool.

    Raises:
        InvalidArgumentError: the leaf is not an array, a number, bytes or str.
    """
    if isinstance(leaf, bytes) and not isinstance(leaf, np.generic):
        return TensorSpec((), BYTES)
    if isinstance(leaf, str) and not isinstance(leaf, np.generic):
        return TensorSpec((), STR)
    array = np.asarray(leaf)
    if array.dtype.hasobject or is_masked(leaf):
        raise invalid_leaf_error(leaf)
    return TensorSpec(array.shape, array.dtype)


def spec_of(element: Any) -> Any:
    """The element spec of one element: the same structure with a `TensorSpec` at each leaf.

    Example:
        >>> spec_of((np.zeros(3, np.float32), b"x"))
        (TensorSpec((3,), float32), TensorSpec((), bytes))
    """
    return rebuild(structure_of(element), map(leaf_spec, flatten(element)))


def spec_rule(name: str, value: Any) -> Any:
    """Check an argument that must be an element spec: a `TensorSpec`, or a nested structure of them."""
    try:
        leaves = flatten(value)
    except (InvalidArgumentError, RecursionError) as error:
        raise InvalidArgumentError(
            f"`{name}` is no element spec: {str(error).partition(chr(10))[0]}", hint="nest it as the elements are"
        ) from None
    wrong = [leaf for leaf in leaves if not isinstance(leaf, TensorSpec)]
    if wrong or not leaves:
        raise InvalidArgumentError(
            f"`{name}` holds {short_repr(wrong[0] if wrong else value)}, not a TensorSpec",
            hint="pass dsnb.TensorSpec(shape, dtype) for each leaf of an element",
        )
    return value


def compatible(first: Any, second: Any) -> bool:
    """Whether two element specs have the same structure and equal leaves, where an unknown size equals any size."""
    if structure_of(first) != structure_of(second):
        return False
    return all(
        a.dtype == b.dtype
        and len(a.shape) == len(b.shape)
        and all(m is None or n is None or m == n for m, n in zip(a.shape, b.shape, strict=True))
        for a, b in zip(flatten(first), flatten(second), strict=True)
    )


def structure_of_spec(spec: Any) -> tuple[Structure, tuple[TensorSpec, ...]]:
    """The structure and the leaves of an element spec."""
    return structure_of(spec), tuple(flatten(spec))


def spec_to_json(spec: Any) -> str:
    """An element spec as JSON; an empty string for None."""
    if spec is None:
        return ""
    leaves = [[dtype_to_text(leaf.dtype), list(leaf.shape)] for leaf in flatten(spec)]
    return json.dumps([structure_to_json(structure_of(spec)), leaves])


def spec_from_json(text: str) -> Any:
    """The element spec that `spec_to_json` wrote; None for an empty string."""
    if not text:
        return None
    structure, leaves = json.loads(text)
    return rebuild(
        structure_from_json(structure), iter([TensorSpec(shape, dtype_from_text(dtype)) for dtype, shape in leaves])
    )
