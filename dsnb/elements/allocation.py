"""Allocates memory for elements: where they are transferred, which saves a copy, or where the system copies fast.

A worker that serves readers of its own host writes each frame into shared memory. An operation that copies its elements
anyway, such as `batch`, allocates from that memory first, so that the result is where its frame needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from dsnb.elements.columns import aligned

Array = np.ndarray[Any, Any]

Allocator = Callable[[int], Array | None]
"""Allocates the given number of bytes, as a writable uint8 array; None if there is no room. The memory belongs to the
element while the array is referenced, and is free afterwards. May be called from any thread."""


def allocate_leaves(allocate: Allocator | None, sizes: Sequence[int]) -> list[Array | None]:
    """Allocate one array for each leaf of an element, at the offsets that the leaves have in a frame.

    Args:
        allocate: Allocates the memory; None if the elements need no particular memory.
        sizes: Bytes of each leaf.

    Returns:
        One uint8 array for each leaf; None for each leaf if there is no room.

    Example:
        >>> [len(piece) for piece in allocate_leaves(lambda nbytes: np.empty(nbytes, np.uint8), [10, 4])]
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


ALIGNMENT: Final = 64
"""Large arrays of NumPy often begin 16 bytes into a page. It is slow to copy what begins at a page, as files do,
to such an address: an AMD EPYC takes 2.4 ms for 4.8 MB instead of 0.4. 4K aliasing is the likely cause."""


def aligned_part(memory: Array, nbytes: int) -> Array:
    """`nbytes` bytes of a uint8 array of at least `ALIGNMENT` more, from the first multiple of `ALIGNMENT` on."""
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + nbytes]


def empty_aligned(nbytes: int) -> Array:
    """A new uint8 array that begins at a multiple of `ALIGNMENT`; its content is arbitrary.

    Example:
        >>> empty_aligned(100).ctypes.data % ALIGNMENT
        0
    """
    return aligned_part(np.empty(nbytes + ALIGNMENT, np.uint8), nbytes)


def copy_into(allocate: Allocator, array: Array) -> Array:
    """Copy an array into allocated memory, or into ordinary memory if there is no room.

    Example:
        >>> int(copy_into(lambda _nbytes: None, np.array([1, 2])).sum())
        3
    """
    block = allocate(array.nbytes) if not array.dtype.hasobject else None
    if block is None:
        return array.copy()
    copy = block.view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
