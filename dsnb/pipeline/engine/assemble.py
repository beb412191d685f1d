"""Lays out the leaves of several elements as one array: the core of `batch`.

Equal contiguous arrays, and scalars of one type, are joined as bytes in one copy, at a tenth of the cost of `np.stack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dsnb.elements.allocation import Allocator, allocate_leaves
from dsnb.elements.columns import COPY_BELOW
from dsnb.elements.structure import Structure, StructureMismatch, columns_of, elements_of, rebuild
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.stage import Run
from dsnb.pipeline.engine.to_numpy import mismatch, numpy_leaf

Array = np.ndarray[Any, Any]

MAX_SHARED_BATCH_BYTES: Final = COPY_BELOW
"""Maximum size of batches that share one array. A user who keeps one of them keeps the whole array alive."""

_MIN_IN_PLACE_BYTES: Final = 16 * 1024
"""Arrays of at least this size are copied one by one to their final place; smaller ones are joined first and then
copied."""


class UnbatchableElement(Exception):
    """An element that cannot be batched with the others: its index among them, and the error for the user."""

    def __init__(self, index: int, error: InvalidArgumentError) -> None:
        super().__init__(str(error))
        self.index = index
        self.error = error


def batch_of(structure: Structure, run: list[Any], first_number: int, allocate: Allocator | None = None) -> Any:
    """Combine several elements into one: each leaf becomes a read-only array with one more dimension, the first.

    Args:
        structure: The structure that all elements must have.
        run: The elements, at least one.
        first_number: The number of the first element in the dataset, for errors.
        allocate: Allocates the memory of the result; None for any memory.

    Raises:
        UnbatchableElement: for the first element that does not fit.
    """
    try:
        columns = columns_of(structure, run)
    except StructureMismatch as odd:
        raise UnbatchableElement(odd.index, mismatch(run[odd.index], structure)) from None
    sizes = [_nbytes(column[0]) for column in columns]
    places = allocate_leaves(
        allocate if max(sizes, default=0) >= _MIN_IN_PLACE_BYTES else None, [size * len(run) for size in sizes]
    )
    leaves = (stack_leaves(column, first_number, place) for column, place in zip(columns, places, strict=True))
    return rebuild(structure, leaves)


def batches_of(structure: Structure, run: list[Any], size: int) -> Run | None:
    """Return the first few batches of a run as views of one array for each leaf.

    Args:
        structure: The structure of the elements.
        run: The elements, a multiple of `size`.
        size: Elements of a batch.

    Returns:
        As many batches as fit into `MAX_SHARED_BATCH_BYTES` bytes. None if fewer than two fit, an element does not fit,
        or a batch's dtype depends on its values.
    """
    try:
        columns = columns_of(structure, run[:size])
        fitting = MAX_SHARED_BATCH_BYTES // max(1, size * sum(map(_nbytes, (column[0] for column in columns))))
        if not columns or fitting < 2:
            return None
        columns = columns_of(structure, run[: fitting * size])
        if not all(map(_has_one_dtype, columns)):
            return None
        arrays = [stack_leaves(column) for column in columns]
    except (StructureMismatch, UnbatchableElement):
        return None
    blocks = [array.reshape(len(array) // size, size, *array.shape[1:]) for array in arrays]
    batches: Any = elements_of(structure, iter(list[Any](blocks)))
    return batches if isinstance(batches, np.ndarray) else list(batches)


def _has_one_dtype(column: Sequence[Any]) -> bool:
    """Whether these values make an array of the same dtype for every subset."""
    kinds = set(map(type, column))
    first = column[0]
    if len(kinds) > 1:
        return False
    if not isinstance(first, (np.ndarray, np.generic)):
        return isinstance(first, (int, float))
    return first.dtype.kind in "biufc"


def _nbytes(leaf: Any) -> int:
    return leaf.nbytes if isinstance(leaf, (np.ndarray, np.generic)) else 8


def stack_leaves(column: Sequence[Any], first_number: int = 0, out: Array | None = None) -> Array:
    """Stack the values of one leaf into one read-only array.

    Args:
        column: The values.
        first_number: The number of the first element in the dataset, for errors.
        out: Memory for the result, for arrays of the first one's size; used only where arrays are copied one by one.

    Example:
        >>> stack_leaves([1, 2, 3])
        array([1, 2, 3])
    """
    kinds = set(map(type, column))
    kind_of_leaf = _leaf_kind(type(column[0]))
    if len(set(map(_leaf_kind, kinds))) > 1:
        index = next(i for i, leaf in enumerate(column) if _leaf_kind(type(leaf)) is not kind_of_leaf)
        raise UnbatchableElement(
            index, unequal_error("type", type(column[index]), type(column[0]), first_number + index)
        )
    if kind_of_leaf is not object:
        array = _stack_text(column, kind_of_leaf, first_number)
    elif kinds == {np.ndarray}:
        array = _stack_arrays(column, first_number, out)
    elif all(issubclass(kind, (int, float, complex, np.number, np.bool_)) for kind in kinds):
        array = _stack_numbers(column, kinds, first_number)
    else:
        array = _stack_arrays([as_array(leaf, index) for index, leaf in enumerate(column)], first_number)
    array.flags.writeable = False
    return array


def _leaf_kind(kind: type) -> type:
    """Which leaves may share an array: `str`, `bytes`, or `object` for everything else."""
    return str if issubclass(kind, str) else bytes if issubclass(kind, bytes) else object


def as_array(leaf: Any, index: int) -> Array:
    """Return a leaf as an array; an error names element `index` of the batch."""
    try:
        return np.asarray(numpy_leaf(leaf))
    except InvalidArgumentError as error:
        raise UnbatchableElement(index, error) from None


def _stack_numbers(column: Sequence[Any], kinds: set[type], first_number: int) -> Array:
    if kinds == {int}:
        try:
            return np.array(column, np.int64)
        except OverflowError:
            return _stack_arrays([as_array(leaf, index) for index, leaf in enumerate(column)], first_number)
    if len(kinds) == 1 and isinstance(column[0], np.generic):
        return _join_bytes(column, column[0].dtype, ())
    return np.array(column) if int not in kinds else np.array([numpy_leaf(leaf) for leaf in column])


def _stack_arrays(column: Sequence[Array], first_number: int, out: Array | None = None) -> Array:
    first = column[0]
    if len({array.shape for array in column}) > 1:
        index = next(i for i, array in enumerate(column) if array.shape != first.shape)
        raise UnbatchableElement(index, unequal_error("shape", column[index].shape, first.shape, first_number + index))
    if len({array.dtype for array in column}) > 1 and first.dtype.kind not in "US":
        index = next(i for i, array in enumerate(column) if array.dtype != first.dtype)
        raise UnbatchableElement(index, unequal_error("dtype", column[index].dtype, first.dtype, first_number + index))
    if first.dtype.hasobject:
        as_array(first, 0)
    if first.dtype.kind in "US" or not first.nbytes:
        return np.stack(column)
    if out is not None and first.nbytes >= _MIN_IN_PLACE_BYTES:
        rows = out.view(first.dtype).reshape(-1, *first.shape[1:])
        return np.concatenate(column, out=rows).reshape(len(column), *first.shape)
    return _join_bytes(column, first.dtype, first.shape)


def _join_bytes(column: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    try:
        body = b"".join(column)
    except (BufferError, TypeError, ValueError):
        # Not contiguous, or a dtype (such as dates) that exports no buffer.
        return np.stack(column)
    return np.frombuffer(body, dtype).reshape(len(column), *shape)


def _stack_text(column: Sequence[Any], leaf_type: type, first_number: int) -> Array:
    nul: Any = "\0" if leaf_type is str else b"\0"
    for index, value in enumerate(column):
        if value.endswith(nul):
            raise UnbatchableElement(index, _ends_in_nul(value, first_number + index))
    return np.array(column)


def unequal_error(what: str, its: Any, first: Any, number: int) -> InvalidArgumentError:
    """Return the error of an element that differs from the first of its batch in shape, dtype or type."""
    cure = {"shape": "by cropping or padding", "dtype": "with x.astype(...)", "type": "with x.decode() or str(x)"}[what]
    return InvalidArgumentError(
        f"element {number} has the {what} {its}, the first of its batch {first}",
        did="the element was left out; reading continues with the next",
        hint=f"make the {what}s equal before `batch`, for instance in `map` {cure}",
    )


def _ends_in_nul(value: Any, number: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"element {number} is {type(value).__name__} that ends in a NUL; an array of text would drop it",
        did="the element was left out; reading continues with the next",
        hint="decode binary records to arrays in `map` before `batch`, as with np.frombuffer(record, np.uint8)",
    )
