"""Which pieces of a memory are free. A pure core: numbers in, numbers out.

The lowest place that is large enough is taken, so that what is used stays small and in the processor's cache, whatever
the memory's size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from mmap import PAGESIZE


def round_up_to_pages(nbytes: int) -> int:
    """Bytes of as many pages as it takes.

    Example:
        >>> whole_pages(1) == whole_pages(PAGESIZE) == PAGESIZE
        True
    """
    return -(-nbytes // PAGESIZE) * PAGESIZE


def merge_adjacent(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces by where they begin and how many bytes they have, those as one that follow upon one another.

    Example:
        >>> adjoining([(2 * PAGESIZE, 5), (0, PAGESIZE + 1), (5 * PAGESIZE, 1)]) == [
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
    """The free pieces of a memory, in order and never adjacent.

    Pieces are whole pages: what is next to one is not touched when its pages are dropped.

    Args:
        size: Bytes of the memory.

    Example:
        >>> free = FreeList(3 * PAGESIZE)
        >>> first, second = free.take(1), free.take(PAGESIZE + 1)
        >>> (first, second == PAGESIZE, free.take(1))
        (0, True, None)
    """

    def __init__(self, size: int) -> None:
        self._free = [(0, size // PAGESIZE * PAGESIZE)]

    @property
    def nbytes(self) -> int:
        """Bytes that are free, in all pieces together."""
        return sum(end - begin for begin, end in self._free)

    def allocate(self, nbytes: int) -> int | None:
        """Where a piece of at least so many bytes begins; None where there is none."""
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
        """Take a piece back."""
        end = begin + round_up_to_pages(nbytes)
        number = bisect_left(self._free, (begin, end))
        if number < len(self._free) and self._free[number][0] == end:
            end = self._free.pop(number)[1]
        if number and self._free[number - 1][1] == begin:
            number -= 1
            begin = self._free.pop(number)[0]
        self._free.insert(number, (begin, end))

    def truncate(self, limit: int) -> None:
        """Have nothing beyond a place; what is taken there is given back as if it were in front of it."""
        self._free = [(begin, min(end, limit)) for begin, end in self._free if begin < limit]
