"""The core of a recording that all workers of a job make together, split by split: its log. No threads, I/O or clock.

There is no lease: a dispatcher assigns each split once, so that no two workers write the same split. If they do (the
job was restarted), both wrote the same elements, and the first record counts. A `SplitChunk` holds complete splits; the
recording has ended when every split is in some chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from dsnb.cache.opened_files import FileState
from dsnb.cache.recordings.recording import (
    FrameRef,
    Record,
    RecordingAbandoned,
    RecordingEnded,
    RecordingHeader,
    SplitChunk,
    kind_of,
)
from dsnb.errors import DataLossError


class SplitLog:
    """The state that all records up to now add up to.

    Attributes:
        next_slot: The number of the slot after the last record.
        header: The first record; None before it.
        recorded_splits: The number of recorded splits.
        ended: Whether the recording is complete.
        abandoned: Why the recording was abandoned; empty if it was not.
        files: The files that were opened for the recorded splits.
    """

    def __init__(self) -> None:
        self.files: list[FileState] = []
        self.next_slot = 0
        self.header: RecordingHeader | None = None
        self.recorded_splits = 0
        self.ended = False
        self.abandoned = ""
        self._chunks: list[SplitChunk] = []
        self._first_splits: list[int] = []

    def apply(self, record: Record) -> None:
        """Add the next record.

        Raises:
            DataLossError: the record can never follow the previous ones.
        """
        if isinstance(record, RecordingHeader) != (self.header is None) or self.abandoned:
            raise DataLossError(f"a {kind_of(record)} record stands where none can, in slot {self.next_slot}")
        match record:
            case RecordingHeader():
                self.header = record
            case SplitChunk():
                self._add(record)
            case RecordingEnded():
                self.ended = True
            case RecordingAbandoned():
                self.abandoned = record.why or "abandoned"
            case _:
                raise DataLossError(f"a {kind_of(record)} record stands in a recording of splits")
        self.next_slot += 1

    def _add(self, chunk: SplitChunk) -> None:
        length = sum(times for _, times in chunk.counts)
        elements = sum(count * times for count, times in chunk.counts)
        if length < 1 or elements != sum(ref.count for ref in chunk.frames):
            raise DataLossError(f"a piece that does not add up stands in slot {self.next_slot}")
        if self._overlaps(chunk.first, chunk.first + length):
            return  # another worker was first, with the same elements
        index = bisect_right(self._first_splits, chunk.first)
        self._first_splits.insert(index, chunk.first)
        self._chunks.insert(index, chunk)
        self.files += chunk.files
        self.recorded_splits += length

    def _overlaps(self, first: int, end: int) -> bool:
        index = bisect_right(self._first_splits, first)
        before = index > 0 and _end_split(self._chunks[index - 1]) > first
        return before or (index < len(self._first_splits) and self._first_splits[index] < end)

    def partition(self, first: int, end: int) -> Iterator[tuple[int, int, SplitChunk | None]]:
        """Divide a range of splits into recorded and unrecorded ones.

        Yields:
            Ranges of splits as (first, end), each with the chunk that holds the whole range, or None.
        """
        while first < end:
            index = bisect_right(self._first_splits, first)
            chunk = self._chunks[index - 1] if index else None
            if chunk is not None and _end_split(chunk) > first:
                stop = min(end, _end_split(chunk))
                yield first, stop, chunk
            else:
                stop = min(end, self._first_splits[index]) if index < len(self._first_splits) else end
                yield first, stop, None
            first = stop

    def contains(self, chunk: SplitChunk) -> bool:
        """Whether this chunk is one of those that count."""
        index = bisect_right(self._first_splits, chunk.first)
        return index > 0 and self._chunks[index - 1] is chunk

    @property
    def frame_refs(self) -> list[FrameRef]:
        """The locations of all frames, in the order of the splits."""
        return [ref for chunk in self._chunks for ref in chunk.frames]

    @property
    def elements(self) -> int:
        """The number of recorded elements."""
        return sum(ref.count for ref in self.frame_refs)


def _end_split(chunk: SplitChunk) -> int:
    return chunk.first + sum(times for _, times in chunk.counts)


def elements_before(chunk: SplitChunk, split: int) -> int:
    """How many elements of a chunk come before those of a split."""
    total, left = 0, split - chunk.first
    for count, times in chunk.counts:
        taken = min(times, left)
        total += count * taken
        left -= taken
    return total


def run_length_encode(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Counts in the form of `SplitChunk.counts`: each count with the number of its consecutive repetitions.

    Example:
        >>> run_length_encode([1, 1, 1, 4])
        ((1, 3), (4, 1))
    """
    return tuple((count, len(list(same))) for count, same in groupby(counts))
