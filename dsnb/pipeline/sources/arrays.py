"""Converts the values given to `from_tensors` and `from_tensor_slices`.

A list of numbers is read as an array here (elsewhere a list is structure). Small arrays are copied, so that later
changes by the user have no effect. For arrays above `MAX_COPIED_BYTES` a read-only view is kept, so that gigabytes are
not doubled; the user must not change them while the dataset is in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from dsnb.arguments import short_repr
from dsnb.elements.data_classes import field_names
from dsnb.elements.leaf_errors import advice, describe_value, is_masked
from dsnb.elements.spec import BYTES, STR, TensorSpec
from dsnb.elements.structure import LEAF, NONE, Structure, class_structure, field_values
from dsnb.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_COPIED_BYTES: Final = 1 << 20
"""Arrays up to this size are copied."""

Array = np.ndarray[Any, Any]
Text = tuple[str, ...] | tuple[bytes, ...]
Column = Array | Text
"""The values of one leaf: an array, or text of varying length."""


def flatten_input(values: Any, name: str) -> tuple[Structure, list[Any]]:
    """Split a user's values into structure and leaves; lists are leaves.

    Args:
        values: The user's values.
        name: The name of the argument, for errors.

    Raises:
        InvalidArgumentError: for a dict with keys that are not strings, or endless nesting.
    """
    try:
        return (LEAF, [None]) if values is None else _flatten(values, name)
    except RecursionError:
        raise InvalidArgumentError(
            f"`{name}` is nested too deeply", hint="flatten it; does it contain itself?"
        ) from None


def _flatten(values: Any, name: str) -> tuple[Structure, list[Any]]:
    if values is None:
        return NONE, []
    fields = field_names(type(values))
    if isinstance(values, dict):
        if not all(isinstance(key, str) for key in values):
            raise InvalidArgumentError(
                f"`{name}` holds a dict with the keys {short_repr(list(values))}",
                hint="use strings as keys, or a tuple",
            )
        children, leaves = _flatten_parts(values.values(), name)
        return Structure("dict", children, tuple(values)), leaves
    if fields is not None:
        children, leaves = _flatten_parts(field_values(values, fields), name)
        return class_structure(type(values), children), leaves
    if isinstance(values, tuple):
        children, leaves = _flatten_parts(values, name)
        return Structure("tuple", children), leaves
    return LEAF, [values]


def _flatten_parts(values: Iterable[Any], name: str) -> tuple[tuple[Structure, ...], list[Any]]:
    parts = [_flatten(value, name) for value in values]
    return tuple(structure for structure, _ in parts), [leaf for _, leaves in parts for leaf in leaves]


def array_of(value: Any, name: str) -> Array:
    """Return a user's value as an array: a copy, or for large arrays a read-only view.

    Raises:
        InvalidArgumentError: NumPy cannot read the value as numbers or text.
    """
    if is_masked(value):
        raise InvalidArgumentError(f"`{name}` holds {describe_value(value)}", hint=advice(value))
    try:
        array = np.asarray(value)
    except Exception as error:  # noqa: BLE001 - the value's own code may run
        raise _unreadable(value, name, str(error)) from None
    if array.dtype == object and array.size and all(isinstance(leaf, (str, bytes)) for leaf in array.flat):
        array = np.array(array.tolist())
    if array.dtype.hasobject:
        raise _unreadable(value, name, "NumPy reads it as an array of objects")
    # An array converted from a list is fresh already, but one more small copy costs less than finding that out.
    return read_only(array.copy() if array.nbytes <= MAX_COPIED_BYTES else array)


def tensor_of(value: Any, name: str) -> Any:
    """Return a user's value as one leaf: text unchanged, a number as a NumPy scalar, anything else as an array."""
    if isinstance(value, (str, bytes)):
        return value
    array = array_of(value, name)
    return array if array.ndim else array[()]


def read_only(array: Array) -> Array:
    """Return a view that cannot be written, not even by setting the writeable flag again."""
    plain = array.dtype.kind in "biufc" and array.dtype.isbuiltin != 2  # other dtypes export no buffer
    if plain and array.flags.c_contiguous and array.size:
        return np.asarray(memoryview(cast("Buffer", array)).toreadonly())
    view = array.view()
    view.flags.writeable = False
    return view


def column_of(value: Any, name: str) -> Column:
    """Return a user's value as rows: an array, or a tuple of text."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, bytes)):
        kind = str if isinstance(value[0], str) else bytes
        if all(isinstance(text, kind) for text in value):
            return tuple(value)
    array = array_of(value, name)
    return tuple(array.tolist()) if array.dtype.kind in "US" and array.ndim == 1 else array


def row_spec(column: Column) -> TensorSpec:
    """Return the spec of one row."""
    if isinstance(column, tuple):
        return TensorSpec((), STR if isinstance(column[0], str) else BYTES) if column else TensorSpec((), STR)
    return TensorSpec(column.shape[1:], column.dtype)


def _unreadable(value: Any, name: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`{name}` holds a value of type {type(value).__name__}, which cannot be read as an array: {why}",
        hint="pass arrays, or lists of numbers or text of equal length, nested in tuples or dicts; "
        "for anything else use from_generator",
    )
