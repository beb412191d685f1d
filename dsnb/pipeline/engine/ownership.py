"""Makes results of user code exclusive: memory that nothing else refers to, so dsnb can keep it or pass it on.

A function or generator may return the same buffer every time and overwrite it for the next element; it may return its
argument, or a part of what it captured. So an array that anything else refers to is copied at once, before user code
runs again, whether or not NumPy marks it writable. A fresh array is not copied: its reference count, and that of the
memory under it, show that nothing else refers to it. A small part of a large fresh array is copied nevertheless:
it would keep the whole array in buffers whose limits count only the part.

The reference count of an object that "nothing else" refers to depends on the Python version and on the calls that it
passed through. The expected counts are therefore measured at import, with the same code that is used afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import is_
from sys import getrefcount
from typing import Any, Final

import numpy as np

from dsnb.elements.allocation import Allocator, copy_into
from dsnb.elements.copying import IMMUTABLE, copy_record
from dsnb.elements.data_classes import field_names, instance_factory, is_data_class

_CONTAINERS = (tuple, dict, list)
_TOLERATED_WASTE_BYTES: Final = 1024
"""Unused memory that a view may keep, whatever its size: a copy would cost more than it saves."""


def ensure_owned(values: Iterable[Any], allocate: Allocator | None = None) -> Iterator[Any]:
    """Yield the values one by one as they are made; copy each as far as anything else refers to its memory.

    Args:
        values: The values; nothing else may refer to the one that was requested last.
        allocate: Allocates the memory of copied arrays.

    Example:
        >>> def counting(buffer):
        ...     for value in range(3):
        ...         buffer[0] = value
        ...         yield buffer
        >>> [int(array[0]) for array in ensure_owned(counting(np.zeros(1)))]
        [0, 1, 2]
    """
    return map(_ensure_owned if allocate is None else partial(_ensure_owned_with_allocator, allocate), values)


def ensure_run_owned(run: list[Any]) -> list[Any]:
    """Return a run whose elements were not checked as they were made, with mutable ones copied as needed."""
    return run if all_immutable(run) else list(ensure_owned(run))


def is_immutable(value: Any) -> bool:
    """Whether an element cannot be changed: scalars and text, alone or in tuples."""
    cls = type(value)
    return cls in IMMUTABLE or (cls is tuple and all(map(is_immutable, value)))


def all_immutable(run: list[Any]) -> bool:
    """Whether `is_immutable` holds for all elements of a run; checks by columns, which is faster."""
    kinds = set(map(type, run))
    if kinds <= IMMUTABLE:
        return True
    if kinds != {tuple}:
        return all(map(is_immutable, run))
    leaves = {type(leaf) for element in run for leaf in element}
    return leaves <= IMMUTABLE or all(map(is_immutable, run))


def _ensure_owned(value: Any) -> Any:
    cls = type(value)
    if cls in IMMUTABLE:
        return value
    unshared = getrefcount(value) <= _UNSHARED_COUNT
    if unshared and cls is np.ndarray and value.base is None:
        return value  # a fresh array, which owns its memory
    if unshared and cls is dict and IMMUTABLE.issuperset(map(type, value.values())):
        return value  # a dict of scalars, the usual case: saves three calls
    return _ensure_value_owned(value, unshared)


def _ensure_owned_with_allocator(allocate: Allocator, value: Any) -> Any:
    if type(value) in IMMUTABLE:
        return value
    unshared = getrefcount(value) <= _UNSHARED_COUNT_WITH_ALLOCATOR
    if type(value) is not np.ndarray:
        return _ensure_value_owned(value, unshared)
    return value if _is_array_owned(value, unshared) else copy_into(allocate, value)


def _ensure_child_owned(value: Any, parent_unshared: bool) -> Any:
    if type(value) in IMMUTABLE:
        return value
    # Counted before the call: the argument of a call in progress is one more reference.
    unshared = parent_unshared and getrefcount(value) <= _UNSHARED_CHILD_COUNT
    return _ensure_value_owned(value, unshared)


def _ensure_value_owned(value: Any, unshared: bool) -> Any:
    if isinstance(value, np.ndarray):
        return value if _is_array_owned(value, unshared) else value.copy()
    if isinstance(value, _CONTAINERS):
        return _ensure_container_owned(value, unshared)
    if is_data_class(type(value)):
        return _ensure_instance_owned(value, unshared)
    # A record is a view, so it is copied. Other types (an image object, say) are not elements yet; only user functions
    # know how to copy them.
    return copy_record(value) if isinstance(value, np.void) else value


def _ensure_container_owned(value: Any, unshared: bool) -> Any:
    children = list(value.values() if isinstance(value, dict) else value)
    mine = children if IMMUTABLE.issuperset(map(type, children)) else _visit(children, _ensure_child_owned, unshared)
    if (unshared or isinstance(value, tuple)) and all(map(is_, mine, children)):
        return value
    if isinstance(value, dict):
        return dict(zip(value, mine, strict=True))
    if isinstance(value, tuple):
        return type(value)._make(mine) if hasattr(value, "_make") else tuple(mine)
    return mine


def _ensure_instance_owned(value: Any, unshared: bool) -> Any:
    keys = field_names(type(value)) or ()
    children = [getattr(value, key) for key in keys]
    mine = _visit(children, _ensure_child_owned, unshared)
    return value if unshared and all(map(is_, mine, children)) else instance_factory(type(value), keys)(mine)


def _is_array_owned(array: np.ndarray[Any, Any], unshared: bool) -> bool:
    """Whether nothing else refers to an array or to what it is a view of, and it uses most of that memory."""
    base: Any = array.base
    while unshared and base is not None:
        unshared = getrefcount(base) <= _UNSHARED_BASE_COUNT
        if type(base) is bytes:
            return unshared and not _wastes_memory(array.nbytes, len(base))
        if not isinstance(base, np.ndarray):
            return False  # a file or another library's memory: its other users are unknown
        if _wastes_memory(array.nbytes, base.nbytes):
            return False
        base = base.base
    return unshared


def _wastes_memory(nbytes: int, base_nbytes: int) -> bool:
    """Whether a view keeps more than twice the memory that it uses, as a crop of a large image does."""
    return base_nbytes > 2 * nbytes + _TOLERATED_WASTE_BYTES


def _visit(children: list[Any], visit: Callable[[Any, bool], Any], unshared: bool) -> list[Any]:
    return [visit(child, unshared) for child in children]


def _count(value: Any) -> int:
    return getrefcount(value)


def _count_with_allocator(_: None, value: Any) -> int:
    return getrefcount(value)


def _count_child(value: Any, _: bool) -> int:
    return getrefcount(value)


def _count_base(array: np.ndarray[Any, Any]) -> int:
    base = array.base
    return getrefcount(base)


def _fresh(_: int) -> np.ndarray[Any, Any]:
    return np.zeros(2)


def _fresh_view(_: int) -> np.ndarray[Any, Any]:
    return np.zeros(2)[:1]


def _fresh_tuple(_: int) -> tuple[np.ndarray[Any, Any]]:
    return (np.zeros(2),)


def _count_in_tuple(value: tuple[Any, ...]) -> int:
    return int(_visit(list(value), _count_child, True)[0])


_UNSHARED_COUNT: int = next(map(_count, map(_fresh, (0,))))
_UNSHARED_COUNT_WITH_ALLOCATOR: int = next(map(partial(_count_with_allocator, None), map(_fresh, (0,))))
_UNSHARED_BASE_COUNT: int = next(map(_count_base, map(_fresh_view, (0,))))
_UNSHARED_CHILD_COUNT: int = next(map(_count_in_tuple, map(_fresh_tuple, (0,))))
