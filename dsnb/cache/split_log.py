"""A recording made split by split, by all workers of a job at once: what its log adds up to. Decides, does nothing.

There is no lease: a dispatcher hands each split out once, so no two write the same, and if they do (a job that began
again), both wrote the same elements and the first one counts. A `Piece` holds whole splits; the recording has ended
when all splits are in some piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from dsnb.cache.opened import FileNote
from dsnb.cache.recording import Abandon, Begin, End, Piece, Place, Record
from dsnb.errors import DataLossError


class SplitLog:
    """What the records up to now add up to.

    Attributes:
        next: The number of the slot behind the last record.
        begin: The first record; None before it.
        recorded: How many splits are recorded.
        ended: Whether these are all.
        abandoned: Why nobody is to read this any more; empty while it is good.
        files: The files that were opened for the splits that are recorded.
    """

    def __init__(self) -> None:
        self.files: list[FileNote] = []
        self.next = 0
        self.begin: Begin | None = None
        self.recorded = 0
        self.ended = False
        self.abandoned = ""
        self._pieces: list[Piece] = []
        self._starts: list[int] = []

    def apply(self, record: Record) -> None:
        """Add the next record.

        Raises:
            DataLossError: it can never stand there.
        """
        if isinstance(record, Begin) != (self.begin is None) or self.abandoned:
            raise DataLossError(f"a {type(record).__name__.lower()} record stands where none can, in slot {self.next}")
        match record:
            case Begin():
                self.begin = record
            case Piece():
                self._add(record)
            case End():
                self.ended = True
            case Abandon():
                self.abandoned = record.why or "abandoned"
            case _:
                raise DataLossError(f"a {type(record).__name__.lower()} record stands in a recording of splits")
        self.next += 1

    def _add(self, piece: Piece) -> None:
        length = sum(times for _, times in piece.counts)
        elements = sum(count * times for count, times in piece.counts)
        if length < 1 or elements != sum(place.count for place in piece.frames):
            raise DataLossError(f"a piece that does not add up stands in slot {self.next}")
        if self._overlaps(piece.first, piece.first + length):
            return  # another one was first, with the same elements
        index = bisect_right(self._starts, piece.first)
        self._starts.insert(index, piece.first)
        self._pieces.insert(index, piece)
        self.files += piece.files
        self.recorded += length

    def _overlaps(self, first: int, end: int) -> bool:
        index = bisect_right(self._starts, first)
        before = index > 0 and _end(self._pieces[index - 1]) > first
        return before or (index < len(self._starts) and self._starts[index] < end)

    def cut(self, first: int, end: int) -> Iterator[tuple[int, int, Piece | None]]:
        """A run of splits as what is recorded and what is not.

        Yields:
            Runs of splits, as first and end, each with the piece that holds all of it, or None.
        """
        while first < end:
            index = bisect_right(self._starts, first)
            piece = self._pieces[index - 1] if index else None
            if piece is not None and _end(piece) > first:
                stop = min(end, _end(piece))
                yield first, stop, piece
            else:
                stop = min(end, self._starts[index]) if index < len(self._starts) else end
                yield first, stop, None
            first = stop

    def holds(self, piece: Piece) -> bool:
        """Whether this is one of the pieces that count."""
        index = bisect_right(self._starts, piece.first)
        return index > 0 and self._pieces[index - 1] is piece

    @property
    def places(self) -> list[Place]:
        """Where all frames lie."""
        return [place for piece in self._pieces for place in piece.frames]

    @property
    def elements(self) -> int:
        """How many elements are recorded."""
        return sum(place.count for place in self.places)


def _end(piece: Piece) -> int:
    return piece.first + sum(times for _, times in piece.counts)


def elements_before(piece: Piece, split: int) -> int:
    """How many elements of a piece come before those of a split."""
    total, left = 0, split - piece.first
    for count, times in piece.counts:
        taken = min(times, left)
        total += count * taken
        left -= taken
    return total


def shortened(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Counts as a `Piece` has them: each with how often it follows itself.

    Example:
        >>> shortened([1, 1, 1, 4])
        ((1, 3), (4, 1))
    """
    return tuple((count, len(list(same))) for count, same in groupby(counts))
