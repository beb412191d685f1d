"""Ways to write into an element that pass over NumPy's read-only flag, as libraries and frameworks do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from dsnb.elements.structure import flatten
from tests.support.requires import require_peer

Array = np.ndarray[Any, Any]


class _Writable:
    """An array's memory as an array that can be written to."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _by_array_interface(array: Array) -> None:
    np.asarray(_Writable(array))[...] = np.zeros((), array.dtype)


def _by_ctypes(array: Array) -> None:
    if array.flags.c_contiguous:
        ctypes.memset(array.ctypes.data, 0, array.nbytes)
    else:
        _by_array_interface(array)


def _by_torch(array: Array) -> None:
    require_peer("torch").from_dlpack(array).mul_(0)


WAYS: dict[str, Callable[[Array], None]] = {
    "__array_interface__": _by_array_interface,
    "ctypes": _by_ctypes,
    "torch.from_dlpack": _by_torch,
}


def overwrite(element: Any, way: str = "__array_interface__") -> None:
    """Write zeros into all arrays of an element."""
    for leaf in flatten(element):
        if isinstance(leaf, np.ndarray) and leaf.size:
            WAYS[way](leaf)
