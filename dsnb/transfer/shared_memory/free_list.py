"""First-fit allocator: which ranges of a memory are free. Pure: it handles offsets and sizes only.

The lowest range that is large enough is used, so that the used part stays small and in the processor's cache, whatever
the size of the memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from mmap import PAGESIZE


def round_up_to_pages(nbytes: int) -> int:
    """Round a size in bytes up to whole pages.

    Example:
        >>> round_up_to_pages(1) == round_up_to_pages(PAGESIZE) == PAGESIZE
        True
    """
    return -(-nbytes // PAGESIZE) * PAGESIZE


def merge_adjacent(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge (offset, size) pieces whose pages are adjacent; returns them sorted by offset.

    Example:
        >>> merge_adjacent([(2 * PAGESIZE, 5), (0, PAGESIZE + 1), (5 * PAGESIZE, 1)]) == [
        ...     (0, 2 * PAGESIZE + 5),
        ...     (5 * PAGESIZE, 1),
        ... ]
        True
    """
    found: list[tuple[int, int]] = []
    for at, nbytes in sorted(pieces):
        begin = found[-1][0] if found else at
        if found and begin + round_up_to_pages(found[-1][1]) == at:
            found[-1] = begin, at - begin + nbytes
        else:
            found.append((at, nbytes))
    return found


class FreeList:
    """The free ranges of a memory, in ascending order, with adjacent ones merged.

    Ranges consist of whole pages, so that discarding the pages of one does not touch its neighbours.

    Args:
        size: Size of the memory in bytes.

    Example:
        >>> free = FreeList(3 * PAGESIZE)
        >>> first, second = free.allocate(1), free.allocate(PAGESIZE + 1)
        >>> (first, second == PAGESIZE, free.allocate(1))
        (0, True, None)
    """

    def __init__(self, size: int) -> None:
        self._free = [(0, size // PAGESIZE * PAGESIZE)]

    @property
    def nbytes(self) -> int:
        """Free bytes in all ranges together."""
        return sum(end - begin for begin, end in self._free)

    def allocate(self, nbytes: int) -> int | None:
        """Allocate `nbytes`, rounded up to pages; returns the offset, or None if no free range is large enough."""
        wanted = round_up_to_pages(nbytes)
        for number, (begin, end) in enumerate(self._free):
            if end - begin >= wanted:
                if end - begin == wanted:
                    del self._free[number]
                else:
                    self._free[number] = (begin + wanted, end)
                return begin
        return None

    def free(self, begin: int, nbytes: int) -> None:
        """Free an allocation, given its offset and the size that was asked for."""
        end = begin + round_up_to_pages(nbytes)
        number = bisect_left(self._free, (begin, end))
        if number < len(self._free) and self._free[number][0] == end:
            end = self._free.pop(number)[1]
        if number and self._free[number - 1][1] == begin:
            number -= 1
            begin = self._free.pop(number)[0]
        self._free.insert(number, (begin, end))

    def truncate(self, limit: int) -> None:
        """Remove all free ranges beyond offset `limit`, because the memory has become smaller."""
        self._free = [(begin, min(end, limit)) for begin, end in self._free if begin < limit]
