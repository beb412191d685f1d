"""Exclusive elements: copies of elements whose buffers are shared.

A buffer that a reader gets is either exclusive (made for this element, referenced nowhere else) or shared: in a log
that several trainers read, in a recording, in an array that the user passed or captured. Exclusive buffers are passed
by reference. NumPy's read-only flag protects nothing: DLPack, torch and ctypes ignore it. So code that keeps a buffer
gives its readers copies, made here, or private mappings of it (`worker/arena`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dsnb.elements.data_classes import field_names, instance_factory, is_data_class
from dsnb.elements.structure import flatten

Array = np.ndarray[Any, Any]

_NUMPY_SCALARS = {scalar for scalar in np.sctypeDict.values() if not issubclass(scalar, (np.void, np.object_))}
IMMUTABLE: Final[frozenset[type]] = frozenset({int, float, bool, complex, str, bytes, type(None), *_NUMPY_SCALARS})
"""Types of leaves that cannot be modified."""

BLOCK_BYTES: Final = 64 * 1024
"""Maximum size of a block of small copies. Keeping one of them keeps no more than that in memory."""


RUN_BYTES: Final = 1 << 20
"""About how many bytes are copied for one run. So little memory is reused while it is still in the CPU's caches."""


def copy_run_length(nbytes: int, want: int) -> int:
    """How many elements of `nbytes` each to copy for a run of at most `want` elements."""
    return min(want, RUN_BYTES // max(1, nbytes) or 1)


def nbytes_of(element: Any) -> int:
    """The total bytes of an element's arrays."""
    return sum(leaf.nbytes for leaf in flatten(element) if isinstance(leaf, np.ndarray))


def copy_rows(rows: Array) -> list[Any]:
    """Copies of an array's rows: small rows in blocks, larger ones one by one; the scalars of a 1-D array.

    Example:
        >>> table = np.zeros((3, 2))
        >>> [np.shares_memory(row, table) for row in copy_rows(table)]
        [False, False, False]
    """
    if rows.ndim == 1:
        return list(map(copy_record, rows)) if rows.dtype.names else list(rows)
    nbytes = rows[:1].nbytes
    count = BLOCK_BYTES // max(1, nbytes) or 1
    found: list[Any] = []
    for first in range(0, len(rows), count):
        block = rows[first : first + count].copy()
        block.setflags(write=False)
        found.extend(block)
    return found


def copy_run(run: list[Any]) -> list[Any]:
    """`copy_element` of each element of a run; column by column for the common types, which is faster.

    Example:
        >>> copy_run([(1, "a"), (2, "b")])
        [(1, 'a'), (2, 'b')]
    """
    kinds = set(map(type, run))
    if kinds <= IMMUTABLE:
        return run
    if kinds == {np.ndarray}:
        copies = [array.copy() for array in run]
        for copy in copies:
            copy.setflags(write=False)
        return copies
    if kinds == {tuple} and run[0] and len(set(map(len, run))) == 1:
        return list(zip(*map(copy_run, map(list, zip(*run, strict=True))), strict=True))
    return list(map(copy_element, run))


def copy_element(element: Any) -> Any:
    """The element with copies of its arrays; immutable leaves (numbers and text) are kept.

    Example:
        >>> mine = copy_element({"image": (image := np.zeros(3)), "label": 5})
        >>> mine["label"], np.shares_memory(mine["image"], image)
        (5, False)
    """
    if isinstance(element, np.ndarray):
        return read_only_copy(element)
    if isinstance(element, np.void):
        return copy_record(element)
    if isinstance(element, tuple):
        parts = map(copy_element, element)
        return type(element)._make(parts) if hasattr(element, "_make") else tuple(parts)
    if isinstance(element, dict):
        return {key: copy_element(part) for key, part in element.items()}
    if isinstance(element, list):
        return list(map(copy_element, element))
    if is_data_class(type(element)):
        keys = field_names(type(element)) or ()
        return instance_factory(type(element), keys)([copy_element(getattr(element, key)) for key in keys])
    return element


def copy_record(record: Any) -> Any:
    """A copy of a record: unlike other NumPy scalars, a record is a view of the array that it was taken from."""
    return np.frombuffer(record.tobytes(), record.dtype)[0]


def read_only_copy(array: Array) -> Array:
    """A copy of an array with NumPy's read-only flag set."""
    copy = array.copy()
    copy.setflags(write=False)
    return copy
