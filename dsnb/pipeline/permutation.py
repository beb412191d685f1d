"""A random order of n numbers that is computed one number at a time, in constant memory. Pure.

Theory of operation. A Feistel network permutes the numbers below 4**k: it cuts a number into two halves of k bits, and
each round replaces (left, right) by (right, left ^ f(right)), which can be undone whatever `f` is. `f` is a hash that
depends on the round's key. With the smallest 4**k that is at least n, numbers of n and more may come out; these are
permuted again until one below n comes out (*cycle walking*). The way back from the result is unique, so this is a
permutation of the numbers below n. As 4**k < 4 n, fewer than four steps are needed on average; more only for n below
17, because networks of fewer than `_LEAST_BITS` bits do not reach all orders evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

_ROUNDS: Final = 8
_LEAST_BITS: Final = 3
_MASK: Final = (1 << 64) - 1
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # the mixing steps of SplitMix64
_VECTOR_FROM: Final = 24
"""For fewer numbers, Python's integers are faster than NumPy's arrays."""

Array = np.ndarray[Any, Any]


class Permutation:
    """A permutation of the numbers below `count`.

    Args:
        count: How many numbers there are.
        key: Whole numbers of 0 or more. The same key gives the same order.

    Example:
        >>> order = Permutation(5, (1, 0))
        >>> sorted(order.at(position) for position in range(5))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, count: int, key: Sequence[int]) -> None:
        self._count = count
        self._bits = max(_LEAST_BITS, ((max(count, 2) - 1).bit_length() + 1) // 2)
        self._keys: list[int] = np.random.SeedSequence(list(key)).generate_state(_ROUNDS, np.uint64).tolist()

    def at(self, position: int) -> int:
        """Return the number at a position of the order, from 0 to `count - 1`."""
        number = self._step(position)
        while number >= self._count:
            number = self._step(number)
        return number

    def of(self, positions: range) -> Array:
        """Return the numbers at consecutive positions, as int64."""
        if len(positions) < _VECTOR_FROM:
            return np.array([self.at(position) for position in positions], np.int64)
        numbers = self._steps(np.arange(positions.start, positions.stop, dtype=np.uint64))
        while len(outside := np.flatnonzero(numbers >= np.uint64(self._count))):
            numbers[outside] = self._steps(numbers[outside])
        return numbers.astype(np.int64)

    def _step(self, number: int) -> int:
        bits, mask = self._bits, (1 << self._bits) - 1
        left, right = number >> bits, number & mask
        for key in self._keys:
            mixed = (right ^ key) & _MASK
            mixed = ((mixed ^ (mixed >> 30)) * _MULTIPLIERS[0]) & _MASK
            mixed = ((mixed ^ (mixed >> 27)) * _MULTIPLIERS[1]) & _MASK
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) & mask)
        return (left << bits) | right

    def _steps(self, numbers: Array) -> Array:
        """Do the same as `_step` for an array; products of uint64 arrays wrap around."""
        bits, mask = np.uint64(self._bits), np.uint64((1 << self._bits) - 1)
        left, right = numbers >> bits, numbers & mask
        first, second = map(np.uint64, _MULTIPLIERS)
        for key in self._keys:
            mixed = right ^ np.uint64(key)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * first
            mixed = (mixed ^ (mixed >> np.uint64(27))) * second
            left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
        result: Array = (left << bits) | right
        return result
