"""`Dataset.cache` in a task that reads only some splits: each split is recorded separately, whichever task reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dsnb.cache.opened_files import FileState
from dsnb.cache.recordings.backends import StoreFailed
from dsnb.cache.recordings.frames import Run, elements_for_reader, nbytes_of
from dsnb.cache.recordings.recording import FrameRef
from dsnb.cache.recordings.split_recording import SplitRecording
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError, DataLossError
from dsnb.pipeline.engine.resume_point import ResumablePositions, ResumePoint
from dsnb.pipeline.engine.stage import Stage, concat_as_list
from dsnb.pipeline.operation import BuildContext, Operation, walk

if TYPE_CHECKING:
    from dsnb.pipeline.operations.cache import FrameSource

_CHUNK_S = 1.0


class SingleRangeFeed:
    """A split feed with a single range of splits."""

    refused = False

    def __init__(self, first: int, end: int) -> None:
        self._range = (first, end)

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        del provider, repetition
        return iter([self._range])

    def repetition(self, provider: int) -> int:
        del provider
        return 0


class SplitCacheStage(Stage):
    """Reads the splits that are recorded; produces and records the others.

    Args:
        name: The operation's name.
        operation: The input.
        context: The context of the task.
        recording: The recording to read and write.
        open_source: Runs the input and returns its frames.
        chunk_bytes: How much is written at once, in bytes.
    """

    def __init__(
        self,
        name: str,
        operation: Operation,
        context: BuildContext,
        recording: SplitRecording,
        open_source: Callable[[BuildContext], FrameSource],
        chunk_bytes: int,
    ) -> None:
        super().__init__(name)
        assert context.splits is not None
        self._operation = operation
        self._context = replace(
            context,
            entropy=recording.entropy,
            iteration_path=(0,),
            provider=0,
            split_sizes=(),
            deterministic=True,
            allocate=None,
            copied_later=False,
        )
        self._may_share_memory = context.copied_later
        self._feed, self._provider = context.splits, context.provider
        self._ranges = self._feed.open(self._provider)
        self._repetition = self._feed.repetition(self._provider)
        self._splits_taken = 0
        self._resumable_positions = ResumablePositions()
        self._recording = recording
        self._open_source = open_source
        self._chunk_bytes = chunk_bytes
        self._one_element_per_split = all(
            step.elementwise or not step.inputs for step in walk(operation)
        ) and _has_one_element_per_split(operation)
        self._pipeline: FrameSource | None = None
        self._pending_ranges: list[tuple[int, int, Any]] = []
        self._unrecorded_files: list[FileState] = []
        """The files that were opened since the last commit."""
        self._ready: Iterator[Run] = iter(())
        self._rest: Run = []
        self._want = 1

    @property
    def may_share_memory(self) -> bool:
        """Whether elements may be views of the recording; otherwise they are copies."""
        return self._may_share_memory

    def resume_point(self, count: int) -> ResumePoint:
        """After the splits that are finished, and the elements of the next splits that were delivered."""
        position = self._resumable_positions.last_before(count) if self._resumable_positions is not None else None
        given, _, splits = position or (-self._start_point.skip, 0, 0)
        return ResumePoint(
            skip=count - given, provider=self._provider, repetition=self._repetition, finished_splits=splits
        )

    def begin_at(self, point: ResumePoint) -> None:
        if point.repetition:
            self._ranges = self._feed.open(self._provider, point.repetition)
            self._repetition = point.repetition
        super().begin_at(point)

    def produce(self, want: int) -> Run:
        self._want = want
        while not len(self._rest):
            self._rest = next(self._ready, [])
            if not len(self._rest) and not self._next_splits():
                return []
        run, self._rest = self._rest[:want], self._rest[want:]
        self._take_opened_files()
        return run

    def _take_opened_files(self) -> None:
        """Report the files that the input has opened, and keep them for the recording."""
        if self._pipeline is not None:
            files = self._pipeline.take_files()
            self._unrecorded_files += files
            self._report_files(files)

    def _report_files(self, files: Sequence[FileState]) -> None:
        if self._context.opened_files is not None:
            self._context.opened_files.add_states(files)

    def _take_unrecorded_files(self) -> tuple[FileState, ...]:
        self._take_opened_files()
        taken, self._unrecorded_files = tuple(self._unrecorded_files), []
        return taken

    def _next_splits(self) -> bool:
        """Begin with the next splits; False if there are none."""
        self.note_resumable_position(self._splits_taken - sum(end - first for first, end, _ in self._pending_ranges))
        if not self._pending_ranges:
            next_range = next(self._ranges, None)
            if next_range is None:
                return False
            self._splits_taken += next_range[1] - next_range[0]
            self._pending_ranges = list(reversed(self._recording.partition(*next_range)))
        first, end, found = self._pending_ranges.pop()
        if found is None:
            self._start_producing(first, end)
        else:
            self._ready = self._read_recorded(first, end, found)
        return True

    def _read_recorded(self, first: int, end: int, piece: Any) -> Iterator[Run]:
        """Return the elements of recorded splits. If reading fails, return none, and produce the splits later."""
        try:
            found = list(self._recording.read(piece, first, end))
        except DataLossError as damage:
            self._recording.abandon_damaged(piece, damage)
        except StoreFailed as refusal:
            self._recording.stop_reading(refusal.error)
        else:
            self._report_files(piece.files)
            return (
                elements_for_reader(frame, low, high, copied_later=self._may_share_memory) for frame, low, high in found
            )
        self._pending_ranges.append((first, end, None))
        return iter(())

    def _start_producing(self, first: int, end: int) -> None:
        """Produce one split; or the whole range, if each split is one element."""
        stop = end if self._one_element_per_split else first + 1
        if stop < end:
            self._pending_ranges.append((stop, end, None))
        self._pipeline = self._open_source(replace(self._context, splits=SingleRangeFeed(first, stop)))
        recorder = _SplitRecorder(
            self._recording,
            first,
            self._chunk_bytes,
            one_element_per_split=self._one_element_per_split,
            take_files=self._take_unrecorded_files,
        )
        self._ready = _ProducedRuns(
            self._pipeline, recorder, lambda: self._want, self._close_pipeline, copied_later=self._may_share_memory
        )

    def _close_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()

    def cancel(self) -> None:
        super().cancel()
        if self._pipeline is not None:
            self._pipeline.cancel()

    def release(self, unread: int) -> None:
        if isinstance(self._ready, _ProducedRuns):
            self._ready.stop()
        self._close_pipeline()
        self._recording.close()


def _has_one_element_per_split(operation: Operation) -> bool:
    """Whether the source of a chain has as many elements as splits."""
    (source,) = (step for step in walk(operation) if not step.inputs)
    provider = source.split_provider()
    return provider is not None and provider.count == source.cardinality


class _SplitRecorder:
    """Records splits while they are produced; commits those that are complete, except splits with a failed element."""

    def __init__(
        self,
        recording: SplitRecording,
        first: int,
        chunk_bytes: int,
        *,
        one_element_per_split: bool,
        take_files: Callable[[], tuple[FileState, ...]],
    ) -> None:
        self._recording = recording
        self._take_files = take_files
        self._chunk_bytes = chunk_bytes
        self._one_element_per_split = one_element_per_split
        self._first = first
        self._count = 0
        self._since = time.monotonic()
        self._frames: list[Frame] = []
        self._locations: list[FrameRef] = []
        self._failed = False

    def add(self, frames: list[Frame]) -> None:
        """Add more elements, and write or commit them when there are enough."""
        self._frames += frames
        self._count += sum(frame.count for frame in frames)
        full = nbytes_of(self._frames) >= self._chunk_bytes
        if self._one_element_per_split and (full or time.monotonic() - self._since >= _CHUNK_S):
            self.commit()
        elif full:
            self._write()

    def fail(self) -> None:
        """Note a failed element: its split is not recorded, and the next iteration produces it again."""
        if self._one_element_per_split:
            self.commit()
            # All elements before the failed one are complete splits; the failed one is skipped.
            self._first += 1
        else:
            self._failed = True

    def _write(self) -> None:
        self._locations += self._recording.write_frames(self._frames)
        self._frames = []

    def commit(self) -> None:
        """Commit complete splits: all elements so far if each is a split, else the single split."""
        self._write()
        counts = [1] * self._count if self._one_element_per_split else [self._count]
        if not self._failed:
            self._recording.commit_splits(self._first, counts, self._locations, self._take_files())
        self._first += len(counts)
        self._locations, self._count, self._since = [], 0, time.monotonic()

    def stop(self) -> None:
        """Note that the reader stops in the middle."""
        if self._one_element_per_split:
            self.commit()


class _ProducedRuns(Iterator[Run]):
    """The elements of splits that are being produced, recorded as they are read."""

    def __init__(
        self,
        pipeline: FrameSource,
        recorder: _SplitRecorder,
        want: Callable[[], int],
        on_end: Callable[[], None],
        *,
        copied_later: bool,
    ) -> None:
        self._pipeline = pipeline
        self._copied_later = copied_later
        self._want = want
        self._recorder: _SplitRecorder | None = recorder
        self._on_end = on_end

    def __next__(self) -> Run:
        recorder = self._recorder
        if recorder is None:
            raise StopIteration
        try:
            frames = self._pipeline.pull(self._want())
        except CancelledError:
            raise
        except Exception:
            recorder.fail()
            raise
        if not frames:
            self._recorder = None
            recorder.commit()
            self._on_end()
            raise StopIteration
        recorder.add(frames)
        found = [elements_for_reader(frame, 0, frame.count, copied_later=self._copied_later) for frame in frames]
        return found[0] if len(found) == 1 else concat_as_list(found)

    def stop(self) -> None:
        """Commit the splits that are complete."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()
