"""One worker's access to a recording that is made split by split: the shell around `cache/recordings/split_log`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from dsnb.cache.opened_files import FileState, first_change
from dsnb.cache.recordings.backends import PipelineRecordings, RecordingLost, RecordingStore, StoreFailed, warn
from dsnb.cache.recordings.frames import merge_small_frames
from dsnb.cache.recordings.recording import (
    FrameRef,
    Record,
    RecordingAbandoned,
    RecordingEnded,
    RecordingHeader,
    SplitChunk,
    decode_record,
    encode_record,
)
from dsnb.cache.recordings.split_log import SplitLog, elements_before, run_length_encode
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError, DsnbError


class SplitRecording:
    """Reads and writes complete splits.

    Args:
        recordings: The recordings of the pipeline.
        header: The first record of a new recording.
        split_count: The number of splits.
    """

    _store: RecordingStore
    _number = 0

    def __init__(self, recordings: PipelineRecordings, header: RecordingHeader, split_count: int) -> None:
        self._recordings = recordings
        self._header = header
        self._split_count = split_count
        self._log = SplitLog()
        self._records: list[bytes] = []
        self._uncommitted: set[FrameRef] = set()
        self.disabled_by: DsnbError | None = None
        self._unreadable = False
        self._disable_on_failure(self._open)

    @property
    def entropy(self) -> int:
        """The root of all randomness without a seed."""
        return (self._log.header or self._header).entropy

    def _open(self) -> None:
        number = max(1, self._recordings.newest_number())
        self._store = self._recordings.open(number)
        self._number = number
        self._start()

    def _start(self) -> None:
        self._refresh()
        change = first_change(self._log.files) if self._store.shared else ""
        if change:  # open the next one; workers that already read the stale recording may finish it
            warn(change, "it is recorded again", "")
            self._open_next()
            self._refresh()
        self._end_if_complete()
        if self._log.ended:
            self._finalize()  # the worker that ended it may have died before it did this

    def _disable_on_failure(self, act: object) -> None:
        assert callable(act)
        try:
            act()
        except (StoreFailed, RecordingLost) as error:
            self._disable(error.error)

    def stop_reading(self, error: DsnbError) -> None:
        """Produce all splits from now on, because the recording cannot be read."""
        self._unreadable = True
        self._disable(error)

    def _disable(self, error: DsnbError) -> None:
        if self.disabled_by is None:
            warn(error.what, error.did or "the pass continues without the cache", error.hint)
        self.disabled_by = error

    def _refresh(self) -> None:
        self._read_new_records()
        while self._log.header is None and not self._claim(self._header):
            self._read_new_records()

    def _read_new_records(self) -> None:
        while (data := self._store.read(self._log.next_slot)) is not None:
            try:
                self._apply(decode_record(data), data)
            except DataLossError as damage:
                _warn_damaged(damage)
                self._open_next()
            if self._log.abandoned:
                self._open_next()

    def abandon_damaged(self, chunk: SplitChunk, damage: DataLossError) -> None:
        """Abandon the recording because a chunk is damaged, for all workers, and open the next one."""
        if self.disabled_by is None and self._log.contains(chunk):  # else another worker has abandoned it already
            _warn_damaged(damage)
            self._disable_on_failure(lambda: self._abandon(damage.what))

    def _abandon(self, why: str) -> None:
        number = self._number
        while self._number == number and not self._claim(RecordingAbandoned(why=why)):
            self._refresh()
        if self._number == number:
            self._open_next()
        self._start()

    def _open_next(self) -> None:
        """Open the next recording with the same entropy, so that splits recorded again get the same random numbers."""
        self._header = replace(self._header, entropy=self.entropy)
        self._uncommitted.clear()
        self._store.close()
        self._number = max(self._number + 1, self._recordings.newest_number())
        self._store = self._recordings.open(self._number)
        self._log, self._records = SplitLog(), []

    def _apply(self, record: Record, data: bytes) -> None:
        self._log.apply(record)
        self._records.append(data)

    def _claim(self, record: Record) -> bool:
        data = encode_record(record)
        # A claim may succeed in the store although its reply was lost, so a failed one is compared with the slot.
        if not self._store.claim(self._log.next_slot, data) and self._store.read(self._log.next_slot) != data:
            return False
        self._apply(record, data)
        return True

    def partition(self, first: int, end: int) -> list[tuple[int, int, SplitChunk | None]]:
        """Divide a range of splits into those that are recorded now and those that are not."""
        if self.disabled_by is None:
            self._disable_on_failure(self._refresh)
        return [(first, end, None)] if self._unreadable else list(self._log.partition(first, end))

    def read(self, chunk: SplitChunk, first: int, end: int) -> Iterator[tuple[Frame, int, int]]:
        """Read the elements of recorded splits: frames, each with the first and the end index of the elements in it.

        Raises:
            DataLossError: a frame is damaged, or the recording was abandoned.
            StoreFailed: the store cannot be reached.
        """
        if not self._log.contains(chunk):
            raise DataLossError("the recording was started again")
        at, stop = elements_before(chunk, first), elements_before(chunk, end)
        base = 0
        for ref in chunk.frames:
            low, high = max(at, base), min(stop, base + ref.count)
            if low < high:
                yield self._store.read_frame(ref), low - base, high - base
            base += ref.count

    def write_frames(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        """Write frames of splits that are not complete yet; returns their locations, none if recording is disabled."""
        refs: list[FrameRef] = []
        if self.disabled_by is None and frames:
            self._disable_on_failure(lambda: refs.extend(self._store.write_frames(merge_small_frames(frames))))
        self._uncommitted.update(refs)
        return tuple(refs)

    def commit_splits(
        self, first: int, counts: Sequence[int], refs: Sequence[FrameRef], files: Sequence[FileState]
    ) -> None:
        """Commit complete splits, starting with split `first`. Ignored if the frames are of an abandoned recording."""
        if self.disabled_by is None and counts and self._uncommitted.issuperset(refs):
            chunk = SplitChunk(first=first, counts=run_length_encode(counts), frames=tuple(refs), files=tuple(files))
            self._disable_on_failure(lambda: self._commit_chunk(chunk))
            self._uncommitted.difference_update(refs)

    def _commit_chunk(self, chunk: SplitChunk) -> None:
        number = self._number
        while self._number == number and not self._log.ended and not self._claim(chunk):
            self._refresh()
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        """End the recording if all splits are recorded: the worker that recorded the last one may have died."""
        while self._log.recorded_splits >= self._split_count and not self._log.ended:
            if self._claim(RecordingEnded(epoch=0, elements=self._log.elements)):
                self._finalize()
            else:
                self._refresh()

    def _finalize(self) -> None:
        with contextlib.suppress(StoreFailed, RecordingLost):
            self._store.finalize(self._records)

    def close(self) -> None:
        """Release the store and the recordings."""
        if self._number:
            self._store.close()
        self._recordings.close()


def _warn_damaged(damage: DataLossError) -> None:
    warn(damage.what, "none of it was used; it is recorded again", damage.hint)
