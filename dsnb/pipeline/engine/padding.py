"""Lays out elements of different sizes as one array, padded to one size: the core of `padded_batch`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from dsnb.elements.allocation import Allocator, allocate_leaves
from dsnb.elements.columns import compatible_dtypes
from dsnb.elements.structure import Structure, StructureMismatch, columns_of, field_values, rebuild
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.assemble import Array, UnbatchableElement, as_array, stack_leaves, unequal_error
from dsnb.pipeline.engine.to_numpy import mismatch

Shape = tuple[int | None, ...]
_LEFT_OUT = "the element was left out; reading continues with the next"


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """The shapes to pad leaves to, and the fill values.

    Attributes:
        shapes: Nested like the elements: the sizes of each leaf, None for the largest size in the batch. None alone
            means that for all leaves.
        values: Nested like the elements: the fill value of each leaf. One value applies to all leaves; None means
            zeros or "".
    """

    shapes: Any = None
    values: Any = None

    def shapes_for(self, structure: Structure) -> list[Shape | None]:
        """Return one shape for each leaf; None where the batch determines it.

        Raises:
            InvalidArgumentError: `shapes` is nested differently from the elements.
        """
        if self.shapes is None:
            return [None] * structure.leaves
        return list(map(_shape_of, flatten_up_to(structure, self.shapes, "padded_shapes")))

    def values_for(self, structure: Structure) -> list[Any]:
        """Return one fill value for each leaf; None for the default.

        Raises:
            InvalidArgumentError: `values` is nested differently from the elements.
        """
        if self.values is None or np.isscalar(self.values) or isinstance(self.values, np.ndarray):
            return [self.values] * structure.leaves
        return flatten_up_to(structure, self.values, "padding_values")

    def assemble(
        self, structure: Structure, run: list[Any], first_number: int, allocate: Allocator | None = None
    ) -> Any:
        """Combine several elements into one, in memory from `allocate` if given.

        Raises:
            UnbatchableElement: for the first element that does not fit.
        """
        try:
            columns = columns_of(structure, run)
            plan = zip(columns, self.shapes_for(structure), self.values_for(structure), strict=True)
            leaves = [_plan(column, shape, value, first_number) for column, shape, value in plan]
        except StructureMismatch as odd:
            raise UnbatchableElement(odd.index, mismatch(run[odd.index], structure)) from None
        except InvalidArgumentError as error:
            raise UnbatchableElement(0, error) from None
        grown = any(isinstance(leaf, _RaggedArrays) for leaf in leaves)
        places = allocate_leaves(allocate if grown else None, [leaf.nbytes for leaf in leaves])
        return rebuild(structure, (_pad(leaf, place) for leaf, place in zip(leaves, places, strict=True)))


def flatten_up_to(structure: Structure, nested: Any, name: str) -> list[Any]:
    """Return the parts of `nested` at the places where `structure` has its leaves.

    Raises:
        InvalidArgumentError: `nested` is nested differently.
    """
    if structure.kind == "leaf":
        return [nested]
    if structure.kind == "dict":
        parts = [nested[key] for key in structure.keys] if _has_keys(nested, structure.keys) else None
    elif structure.kind == "dataclass" and hasattr(nested, "__dataclass_fields__"):
        parts = list(field_values(nested, structure.keys))
    else:
        parts = list(nested) if isinstance(nested, (tuple, list)) else None
    if structure.kind == "none":
        return []
    if parts is None or len(parts) != len(structure.children):
        raise InvalidArgumentError(
            f"`{name}` holds {nested!r} where the elements are built as {structure}",
            did=_LEFT_OUT,
            hint=f"nest `{name}` as the elements are, or leave it out",
        )
    return [
        leaf for child, part in zip(structure.children, parts, strict=True) for leaf in flatten_up_to(child, part, name)
    ]


def _has_keys(nested: Any, keys: tuple[str, ...]) -> bool:
    return isinstance(nested, dict) and set(nested) == set(keys)


def _shape_of(given: Any) -> Shape:
    sizes = getattr(given, "shape", given)  # a TensorSpec is accepted too
    if sizes is None or isinstance(sizes, (int, np.integer)):
        sizes = (sizes,)
    try:
        return tuple(None if size in (None, -1) else _size_of(size) for size in sizes)
    except (TypeError, ValueError):
        raise _no_shape(given) from None


def _size_of(size: Any) -> int:
    if isinstance(size, bool) or int(size) != size or size < 0:
        raise _no_shape(size)
    return int(size)


def _no_shape(given: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`padded_shapes` contains {given!r}, which is not a shape",
        hint="for each leaf pass its sizes, None where the largest of the batch counts: [None, 28]",
    )


class _RaggedArrays(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays of one leaf that must be padded."""

    arrays: list[Array]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill_value: Any

    @property
    def nbytes(self) -> int:
        """Size of all arrays after padding, in bytes."""
        return len(self.arrays) * math.prod(self.shape) * self.dtype.itemsize


def _plan(column: Sequence[Any], shape: Shape | None, value: Any, first_number: int) -> _RaggedArrays | Array:
    if isinstance(column[0], (str, bytes)):
        _target_shape([()], shape)
        return stack_leaves(column, first_number)
    arrays = [as_array(leaf, index) for index, leaf in enumerate(column)]
    first = arrays[0]
    for index, array in enumerate(arrays):
        if array.ndim != first.ndim:
            raise UnbatchableElement(index, unequal_error("shape", array.shape, first.shape, first_number + index))
        if not compatible_dtypes(array.dtype, first.dtype):
            raise UnbatchableElement(index, unequal_error("dtype", array.dtype, first.dtype, first_number + index))
    target = _target_shape([array.shape for array in arrays], shape)
    fill_value = fill_value_of(value, first.dtype)
    if all(array.shape == target for array in arrays):
        return stack_leaves(arrays, first_number)
    return _RaggedArrays(
        arrays=arrays, shape=target, dtype=np.result_type(*{a.dtype for a in arrays}), fill_value=fill_value
    )


def _pad(leaf: _RaggedArrays | Array, memory: Array | None) -> Array:
    if isinstance(leaf, np.ndarray):
        return leaf
    shape = (len(leaf.arrays), *leaf.shape)
    out = np.empty(shape, leaf.dtype) if memory is None else memory.view(leaf.dtype).reshape(shape)
    out[...] = leaf.fill_value
    for row, array in zip(out, leaf.arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    out.flags.writeable = False
    return out


def _target_shape(shapes: list[tuple[int, ...]], wanted: Shape | None) -> tuple[int, ...]:
    largest = tuple(map(max, zip(*shapes, strict=True)))
    if wanted is None:
        return largest
    if len(wanted) != len(shapes[0]):
        raise InvalidArgumentError(
            f"`padded_shapes` says {wanted} for a leaf of the shape {shapes[0]}",
            did=_LEFT_OUT,
            hint="give as many sizes as the leaf has dimensions; () for a scalar",
        )
    for index, shape in enumerate(shapes):
        if any(size is not None and has > size for has, size in zip(shape, wanted, strict=True)):
            raise UnbatchableElement(index, _too_large(shape, wanted))
    return tuple(has if size is None else size for has, size in zip(largest, wanted, strict=True))


def _too_large(shape: tuple[int, ...], wanted: Shape) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Attempted to pad to a smaller size than the input element: {shape} is to become {wanted}",
        did=_LEFT_OUT,
        hint="make `padded_shapes` larger, or None; or cut the elements in `map`",
    )


def fill_value_of(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the fill value converted to `dtype`.

    Raises:
        InvalidArgumentError: the dtype cannot represent the value.
    """
    if value is None:
        return np.zeros((), dtype)[()]
    given = np.asarray(value)
    text = dtype.kind in "SU"
    if given.ndim == 0 and (given.dtype.kind == dtype.kind if text else given.dtype.kind not in "SUO"):
        try:
            fill_value: Any = given[()] if text else given.astype(dtype)[()]
        except (TypeError, ValueError, OverflowError):
            pass
        else:
            if text or np.array_equal(fill_value, given, equal_nan=given.dtype.kind in "fc"):
                return fill_value
    raise InvalidArgumentError(
        f"`padding_values` holds {value!r} for a leaf of the dtype {dtype}",
        did=_LEFT_OUT,
        hint="pass a value of the leaf's dtype, or None for zeros",
    )
