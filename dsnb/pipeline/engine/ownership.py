"""Making what user code hands in exclusive: memory that nobody else has, for dsnb to keep and to hand on by reference.

A function or generator may return the same buffer every time and write into it again for the next element; it may
return what it was given, or a part of what it captured. So an array that anything else refers to is copied at once,
before user code runs again, whether NumPy would let it be written to or not. A fresh array is not copied: nothing else
refers to it or to the memory under it, which reference counts tell.

How many references an object has that "nothing else" refers to depends on the interpreter and on the way it came here.
The counts are therefore measured at import, with the very code that is used afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import is_
from sys import getrefcount
from typing import Any

import numpy as np

from dsnb.elements.classes import fields_of, is_data_class, maker
from dsnb.elements.exclusive import IMMUTABLE, exclusive_record
from dsnb.elements.room import Room, copied

_CONTAINERS = (tuple, dict, list)


def owned(values: Iterable[Any], room: Room | None = None) -> Iterator[Any]:
    """The values, each copied as far as anything else refers to its memory, one by one as they are made.

    Args:
        values: The values; nobody else may refer to the one that is asked for last.
        room: Where copies of arrays are laid out.

    Example:
        >>> def counting(buffer):
        ...     for value in range(3):
        ...         buffer[0] = value
        ...         yield buffer
        >>> [int(array[0]) for array in owned(counting(np.zeros(1)))]
        [0, 1, 2]
    """
    return map(_own if room is None else partial(_own_in, room), values)


def kept(run: list[Any]) -> list[Any]:
    """A run that was made without a look at each element, as it may be kept."""
    return run if all_immutable(run) else list(owned(run))


def is_immutable(value: Any) -> bool:
    """Whether nobody can change an element: scalars and text, alone or in tuples."""
    cls = type(value)
    return cls in IMMUTABLE or (cls is tuple and all(map(is_immutable, value)))


def all_immutable(run: list[Any]) -> bool:
    """Whether `is_immutable` holds for a whole run, looked at by columns."""
    kinds = set(map(type, run))
    if kinds <= IMMUTABLE:
        return True
    if kinds != {tuple}:
        return all(map(is_immutable, run))
    leaves = {type(leaf) for element in run for leaf in element}
    return leaves <= IMMUTABLE or all(map(is_immutable, run))


def _own(value: Any) -> Any:
    cls = type(value)
    if cls in IMMUTABLE:
        return value
    alone = getrefcount(value) <= _ALONE
    if alone and cls is np.ndarray and value.base is None:
        return value  # a fresh array, too
    if alone and cls is dict and IMMUTABLE.issuperset(map(type, value.values())):
        return value  # the usual dict of scalars, without three calls more
    return _owned(value, alone)


def _own_in(room: Room, value: Any) -> Any:
    if type(value) in IMMUTABLE:
        return value
    alone = getrefcount(value) <= _ALONE_IN
    if type(value) is not np.ndarray:
        return _owned(value, alone)
    return value if _array_owned(value, alone) else copied(room, value)


def _own_child(value: Any, parent_alone: bool) -> Any:
    if type(value) in IMMUTABLE:
        return value
    # Counted before the call: an argument that waits for it is one reference more.
    alone = parent_alone and getrefcount(value) <= _ALONE_INSIDE
    return _owned(value, alone)


def _owned(value: Any, alone: bool) -> Any:
    if isinstance(value, np.ndarray):
        return value if _array_owned(value, alone) else value.copy()
    if isinstance(value, _CONTAINERS):
        return _owned_container(value, alone)
    if is_data_class(type(value)):
        return _owned_instance(value, alone)
    # A record is a view. Something that is no element yet (an image object, say) only the user's functions can copy.
    return exclusive_record(value) if isinstance(value, np.void) else value


def _owned_container(value: Any, alone: bool) -> Any:
    children = list(value.values() if isinstance(value, dict) else value)
    mine = children if IMMUTABLE.issuperset(map(type, children)) else _visit(children, _own_child, alone)
    if (alone or isinstance(value, tuple)) and all(map(is_, mine, children)):
        return value
    if isinstance(value, dict):
        return dict(zip(value, mine, strict=True))
    if isinstance(value, tuple):
        return type(value)._make(mine) if hasattr(value, "_make") else tuple(mine)
    return mine


def _owned_instance(value: Any, alone: bool) -> Any:
    keys = fields_of(type(value)) or ()
    children = [getattr(value, key) for key in keys]
    mine = _visit(children, _own_child, alone)
    return value if alone and all(map(is_, mine, children)) else maker(type(value), keys)(mine)


def _array_owned(array: np.ndarray[Any, Any], alone: bool) -> bool:
    """Whether nothing else refers to an array, nor to what it is a view of."""
    base: Any = array.base
    while alone and base is not None:
        alone = getrefcount(base) <= _ALONE_BASE
        if type(base) is bytes:
            return alone
        if not isinstance(base, np.ndarray):
            return False  # a file, or another library's memory: what else refers to that is not known
        base = base.base
    return alone


def _visit(children: list[Any], visit: Callable[[Any, bool], Any], alone: bool) -> list[Any]:
    return [visit(child, alone) for child in children]


def _count(value: Any) -> int:
    return getrefcount(value)


def _count_in(_: None, value: Any) -> int:
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


def _counts_inside(value: tuple[Any, ...]) -> int:
    return int(_visit(list(value), _count_child, True)[0])


_ALONE: int = next(map(_count, map(_fresh, (0,))))
_ALONE_IN: int = next(map(partial(_count_in, None), map(_fresh, (0,))))
_ALONE_BASE: int = next(map(_count_base, map(_fresh_view, (0,))))
_ALONE_INSIDE: int = next(map(_counts_inside, map(_fresh_tuple, (0,))))
