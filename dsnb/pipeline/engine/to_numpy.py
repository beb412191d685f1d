"""Converts elements to NumPy where they leave a pipeline.

Inside a pipeline, elements are what user code made: a Python int stays an int, because the next function may expect
one. Where elements leave, Python numbers become NumPy scalars, arrays become read-only, and text stays text. Conversion
works on runs, because a NumPy scalar made on its own costs ten times as much as one taken out of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol, Self

import numpy as np

from dsnb.elements.columns import plain_array
from dsnb.elements.copying import IMMUTABLE
from dsnb.elements.leaf_errors import invalid_leaf_error
from dsnb.elements.structure import LEAF, Structure, StructureMismatch, columns_of, elements_of, structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.frameworks.placement import Placement
from dsnb.pipeline.engine.stage import Run, as_list
from dsnb.pipeline.operation import operation_of

_PYTHON_NUMBERS: Final[dict[type, type[np.generic]]] = {
    int: np.int64,
    float: np.float64,
    bool: np.bool_,
    complex: np.complex128,
}
_DTYPE: Final = attrgetter("dtype")
_HAS_OBJECT: Final = attrgetter("hasobject")
_DID: Final = "the element was left out; reading continues with the next"
_ARRAY_TYPES: Final = {np.ndarray}
_UNCHANGED_TYPES: Final = IMMUTABLE - _PYTHON_NUMBERS.keys() - {type(None)}


class Converter(Protocol):
    """The last step of an iterator: makes what the user gets of what the pipeline returned."""

    def fresh_copy(self) -> Self:
        """Return a converter with the same settings for other elements."""
        ...

    def convert(self, run: Run) -> tuple[list[Any], Exception | None, list[Any]]:
        """Convert a run; return the elements before the first invalid one, its error, and the elements after it."""
        ...


class NumpyConverter:
    """Converts runs to lists of NumPy elements, all with the structure of the first one.

    Args:
        writable: Whether arrays are copies that the user may write to; otherwise they are read-only.
        placement: Makes a framework's objects of the NumPy leaves; None to leave them as they are.

    Example:
        >>> NumpyConverter().convert([1, 2])[0]
        [np.int64(1), np.int64(2)]
    """

    def __init__(self, *, writable: bool = False, placement: Placement | None = None) -> None:
        self._structure: Structure | None = None
        self._writable = writable
        self._placement = placement

    def fresh_copy(self) -> NumpyConverter:
        """Return a converter with the same settings for other elements."""
        return NumpyConverter(writable=self._writable, placement=self._placement)

    def convert(self, run: Run) -> tuple[list[Any], Exception | None, list[Any]]:
        """Convert a run; return the elements before the first invalid one, its error, and the elements after it."""
        try:
            return self._convert_all(run), None, []
        except (StructureMismatch, InvalidArgumentError):
            return self._convert_each(as_list(run))

    def _convert_all(self, run: Run) -> list[Any]:
        if self._structure is None:
            self._structure = structure_of(run[0])
        if self._placement is None:
            return self._numpy_elements(run, self._structure)
        if self._structure is LEAF and not self._writable and _ARRAY_TYPES.issuperset(map(type, run)):
            # The usual case. Making NumPy elements of the arrays first would cost as much as the conversion.
            return list(map(self._placement.convert_leaf, run))
        return _map_leaves(self._placement.convert_leaf, self._numpy_elements(run, self._structure), self._structure)

    def _numpy_elements(self, run: Run, structure: Structure) -> list[Any]:
        elements = _to_numpy(run, structure)
        return _map_leaves(_copy_leaf, elements, structure) if self._writable else elements

    def _convert_each(self, run: list[Any]) -> tuple[list[Any], Exception | None, list[Any]]:
        out: list[Any] = []
        for index, element in enumerate(run):
            try:
                out += self._convert_all([element])
            except StructureMismatch:
                return out, self._mismatch(element), run[index + 1 :]
            except InvalidArgumentError as error:
                return out, error, run[index + 1 :]
        return out, None, []

    def _mismatch(self, element: Any) -> InvalidArgumentError:
        return mismatch(element, self._structure or LEAF)


def _to_numpy(run: Run, structure: Structure) -> list[Any]:
    elements = _read_only_rows(run) if isinstance(run, np.ndarray) else run
    if structure is LEAF:
        if elements is not run or _UNCHANGED_TYPES.issuperset(map(type, elements)):
            return elements
        if _ARRAY_TYPES.issuperset(map(type, elements)):
            return list(_made_read_only(elements))
    columns = columns_of(structure, elements)
    converted = [_numpy_leaves(column) for column in columns]
    if all(new is old for new, old in zip(converted, columns, strict=True)):
        return elements
    return list(elements_of(structure, iter(converted), len(elements)))


def _map_leaves(function: Callable[[Any], Any], elements: list[Any], structure: Structure) -> list[Any]:
    """Return the elements with the results of a function in place of their leaves."""
    if structure is LEAF:
        return list(map(function, elements))
    columns = [list(map(function, column)) for column in columns_of(structure, elements)]
    return list(elements_of(structure, iter(columns), len(elements)))


def _copy_leaf(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, (np.ndarray, np.void)) else leaf


def mismatch(element: Any, structure: Structure) -> InvalidArgumentError:
    """Return the error of an element whose structure differs from that of the first."""
    return InvalidArgumentError(
        f"an element is built as {structure_of(element)}, the first one as {structure}",
        did=_DID,
        hint="return the same structure for every element: the same keys, the same number of fields",
    )


def _read_only_rows(run: np.ndarray[Any, Any]) -> list[Any]:
    if run.flags.writeable:
        run = run.view()
        run.flags.writeable = False
    return as_list(run)


def _numpy_leaves(column: Sequence[Any]) -> Sequence[Any]:
    kinds = set(map(type, column))
    if kinds <= _UNCHANGED_TYPES:
        return column
    if kinds == {np.ndarray}:
        return _made_read_only(column)
    if len(kinds) == 1 and (scalar := _PYTHON_NUMBERS.get(*kinds)) is not None:
        return list(_array_of(column, scalar))
    return [numpy_leaf(leaf) for leaf in column]


def _made_read_only(column: Sequence[np.ndarray[Any, Any]]) -> Sequence[np.ndarray[Any, Any]]:
    if any(map(_HAS_OBJECT, set(map(_DTYPE, column)))):
        raise invalid_leaf_error(next(array for array in column if array.dtype.hasobject))
    for array in column:
        array.setflags(write=False)
    # A 0-d array becomes a scalar, the same as when it comes from a service.
    return column if column[0].ndim else [array[()] for array in column]


def _array_of(column: Sequence[Any], scalar: type[np.generic]) -> np.ndarray[Any, Any]:
    try:
        return np.array(column, scalar)
    except OverflowError as error:
        raise invalid_leaf_error(max(column, key=abs), "it has more than 64 bits") from error


def numpy_leaf(leaf: Any) -> Any:
    """Convert one leaf to NumPy; `str`, `bytes` and nested datasets stay as they are.

    Raises:
        InvalidArgumentError: the leaf is neither number, text nor array.
    """
    kind = type(leaf)
    if kind in _UNCHANGED_TYPES:
        return leaf
    if kind in _PYTHON_NUMBERS:
        return _array_of([leaf], _PYTHON_NUMBERS[kind])[0]
    if operation_of(leaf) is not None:
        return leaf  # a window is a dataset
    array = plain_array(leaf)
    if not isinstance(leaf, np.ndarray):
        array = array.copy()  # others may write to this memory
    array.flags.writeable = False
    return array if array.ndim else array[()]
