"""Digests of the contents of elements, which tell whether two readers, runs or epochs received the same.

The digest of several elements is the sum of their hashes modulo 2**128. So it depends neither on their order nor on how
they are divided among readers, workers and frames; and unlike an exclusive or, the sum shows an element that came
twice.

The hash is xxh3_128, which dsnb also uses elsewhere. It is about as fast as NumPy's sum of the same memory, so there is
little to gain from another one. It detects accidental changes, but does not protect against tampering: someone who can
write the data can construct other data with the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final

import numpy as np
import xxhash

from dsnb.elements.columns import Array, Buffer, Column, Ragged, Text, bytes_of
from dsnb.elements.frame import Frame
from dsnb.elements.spec import dtype_to_text
from dsnb.elements.structure import structure_to_json

_MODULUS: Final = 1 << 128
FAILURE_HASH: Final = xxhash.xxh3_128_intdigest(b"an error in the place of an element")
"""The hash of an error that takes an element's place, whatever its text: that may name processes or addresses."""

_Kind = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and shape of a leaf; the length of text stands for its shape."""


def frame_hashes(frame: Frame, start: int, stop: int) -> list[int]:
    """The hashes of a frame's elements from `start` up to `stop`.

    Each is that of the element's structure, and of the dtype, shape and bytes of its leaves. How the frame keeps them,
    and what else is in it, does not matter.

    Example:
        >>> from dsnb.elements.frame import frames_of
        >>> frame, part = (next(frames_of(run, None)) for run in ([1, 2, 3], [2]))
        >>> frame_hashes(frame, 1, 2) == frame_hashes(part, 0, 1)
        True
    """
    if frame.failure is not None:
        return [FAILURE_HASH]
    structure = structure_to_json(frame.structure)
    if not frame.columns:
        return [_hash(_seed(structure, ()), ())] * (stop - start)
    kinds, leaves = zip(*(_contents(column, start, stop) for column in frame.columns), strict=True)
    seeds = map(_seed, repeat(structure), zip(*kinds, strict=True))
    return list(map(_hash, seeds, zip(*leaves, strict=True)))


def _contents(column: Column, start: int, stop: int) -> tuple[Iterable[_Kind], Sequence[Buffer]]:
    """The kinds of values of a column, and the values, which export their bytes."""
    if isinstance(column, Text):
        texts = column.encoded(start, stop)
        return [(column.dtype, (len(text),)) for text in texts], texts
    values = list(column.values[start:stop])
    if column.dtype.kind in "SU":
        values = list(map(_narrowest, values))
    elif not isinstance(column, Ragged):
        return repeat((column.dtype, column.shape), len(values)), values
    return [(value.dtype, value.shape) for value in values], values


def _narrowest(text: Any) -> Array:
    """An array of text in the narrowest dtype: a frame gives all of its arrays of text the widest of their dtypes."""
    array = np.asarray(text)
    return array.astype((array.dtype.type, max(1, np.char.str_len(array).max(initial=0))))


@lru_cache(maxsize=1024)
def _seed(structure: str, kinds: tuple[_Kind, ...]) -> int:
    """The seed of the hashes of elements with this structure and these kinds of leaves."""
    text = ";".join([structure, *(f"{dtype_to_text(dtype)}{shape}" for dtype, shape in kinds)])
    return xxhash.xxh3_64_intdigest(text.encode())


def _hash(seed: int, leaves: Iterable[Buffer]) -> int:
    digest = xxhash.xxh3_128(seed=seed)
    for leaf in leaves:
        try:
            digest.update(leaf)
        except (BufferError, TypeError, ValueError):  # it is not contiguous, or exports no buffer
            digest.update(bytes_of(leaf))
    return digest.intdigest()


def digest_of(hashes: Iterable[int]) -> bytes:
    """The digest of elements with these hashes.

    Example:
        >>> digest_of([1, 2]) == digest_of([2, 1]) == sum_of_digests([digest_of([1]), digest_of([2])])
        True
    """
    return (sum(hashes) % _MODULUS).to_bytes(16, "big")


def sum_of_digests(digests: Iterable[bytes]) -> bytes:
    """The digest of all elements of several digests."""
    return digest_of(int.from_bytes(digest, "big") for digest in digests)
