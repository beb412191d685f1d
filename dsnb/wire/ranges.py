"""Sets of element numbers, kept as ranges: which elements of a task's sequence were received, or consumed. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec


class Ranges:
    """A set of non-negative integers, stored as disjoint half-open ranges in ascending order.

    Args:
        pairs: Ranges as (first, end), in any order; they may overlap.

    Example:
        >>> numbers = Ranges([(0, 3), (5, 8)])
        >>> numbers.add(3, 5)
        >>> numbers.pairs()
        ((0, 8),)
    """

    __slots__ = ("_ends", "_firsts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in pairs:
            self.add(first, end)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The ranges as (first, end)."""
        return tuple(zip(self._firsts, self._ends, strict=True))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._ends, strict=True)

    def __len__(self) -> int:
        """How many numbers the set contains."""
        return sum(self._ends) - sum(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and (self._firsts, self._ends) == (other._firsts, other._ends)

    __hash__ = None  # type: ignore[assignment]  # ranges change

    def __repr__(self) -> str:
        return f"Ranges({list(self.pairs())})"

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number < self._ends[at]

    @property
    def end(self) -> int:
        """One more than the largest number; 0 if the set is empty."""
        return self._ends[-1] if self._ends else 0

    def add(self, first: int, end: int) -> None:
        """Add the numbers from `first` up to, but not including, `end`."""
        if first >= end:
            return
        if self._ends and first == self._ends[-1]:  # by far the most frequent case
            self._ends[-1] = end
            return
        left = bisect_left(self._ends, first)  # the first range that touches or follows
        right = bisect_right(self._firsts, end)  # the index after the last range that touches
        if left < right:
            first, end = min(first, self._firsts[left]), max(end, self._ends[right - 1])
        self._firsts[left:right] = [first]
        self._ends[left:right] = [end]

    def update(self, other: Iterable[tuple[int, int]]) -> None:
        """Add all numbers of the given (first, end) ranges."""
        for first, end in other:
            self.add(first, end)

    def remove(self, first: int, end: int) -> None:
        """Remove the numbers from `first` up to, but not including, `end`.

        Example:
            >>> numbers = Ranges([(0, 8)])
            >>> numbers.remove(2, 5)
            >>> numbers.pairs()
            ((0, 2), (5, 8))
        """
        if first >= end:
            return
        left, right = bisect_right(self._ends, first), bisect_left(self._firsts, end)  # the ranges that overlap
        if left < right:
            before, after = self._firsts[left], self._ends[right - 1]
            kept = [(before, min(first, after)), (max(end, before), after)]
            self._firsts[left:right] = [part[0] for part in kept if part[0] < part[1]]
            self._ends[left:right] = [part[1] for part in kept if part[0] < part[1]]

    def gap(self, at: int) -> tuple[int, int | None]:
        """The first gap in the set at or after `at`.

        Returns:
            The first number of the gap, and the number after its last one; None if the gap has no end.

        Example:
            >>> Ranges([(0, 3), (5, 8)]).gap(1)
            (3, 5)
        """
        index = bisect_right(self._firsts, at)
        if index and at < self._ends[index - 1]:
            at = self._ends[index - 1]
        return at, self._firsts[index] if index < len(self._firsts) else None

    def within(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of the ranges that lie between `first` and `end`, as (first, end)."""
        for index in range(bisect_right(self._ends, first), len(self._firsts)):
            if self._firsts[index] >= end:
                return
            yield max(first, self._firsts[index]), min(end, self._ends[index])


def split_ranges(pairs: Iterable[tuple[int, int]], count: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Split a list of ranges after its first `count` numbers, counted in the list's order.

    Example:
        >>> split_ranges([(10, 14), (20, 22)], 5)
        ([(10, 14), (20, 21)], [(21, 22)])
    """
    before: list[tuple[int, int]] = []
    after: list[tuple[int, int]] = []
    for first, end in pairs:
        cut = first + min(count, end - first)
        count -= cut - first
        if first < cut:
            before.append((first, cut))
        if cut < end:
            after.append((cut, end))
    return before, after


def ranges_to_json(value: Any) -> tuple[tuple[int, int], ...]:
    """For `enc_hook` of msgspec: the pairs of `Ranges`, the only class here that msgspec does not know."""
    if not isinstance(value, Ranges):
        raise TypeError(f"{value!r} cannot be written as JSON")
    return value.pairs()


def ranges_from_json(kind: type, value: Any) -> Any:
    """For `dec_hook` of msgspec: the `Ranges` of a list of pairs."""
    if kind is not Ranges:
        raise TypeError(f"{kind.__name__} cannot be read from JSON")
    return Ranges(msgspec.convert(value, tuple[tuple[int, int], ...]))
