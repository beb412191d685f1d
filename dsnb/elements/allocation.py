"""Memory to lay elements out in that can stay where they are when they are handed over.

A worker that serves readers of its host writes each frame into memory which they see. What lays an element out anew
anyway, as `batch` does, asks for a piece of that memory first: then the element is in its place already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsnb.elements.columns import aligned

Array = np.ndarray[Any, Any]

Allocator = Callable[[int], Array | None]
"""A piece of so many bytes (uint8, to be written to), where there is one. It is the element's as long as it lives; a
piece that nobody refers to is free again. From any thread."""


def allocate_leaves(allocate: Allocator | None, sizes: Sequence[int]) -> list[Array | None]:
    """One piece for each leaf of an element, in the places that its frame will have them.

    Args:
        allocate: Where; None where elements are laid out anywhere.
        sizes: Bytes of each leaf.

    Returns:
        None for each where there is no room.

    Example:
        >>> [len(piece) for piece in pieces(lambda nbytes: np.empty(nbytes, np.uint8), [10, 4])]
        [10, 4]
    """
    starts: list[int] = []
    end = 0
    for size in sizes:
        starts.append(aligned(end))
        end = starts[-1] + size
    block = allocate(end) if allocate is not None else None
    if block is None:
        return [None] * len(sizes)
    return [block[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def copy_into(allocate: Allocator, array: Array) -> Array:
    """A copy of an array, in its place if there is room for it.

    Example:
        >>> int(copied(lambda _nbytes: None, np.array([1, 2])).sum())
        3
    """
    block = allocate(array.nbytes) if not array.dtype.hasobject else None
    if block is None:
        return array.copy()
    copy = block.view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
