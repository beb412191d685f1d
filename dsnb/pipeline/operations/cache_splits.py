"""`Dataset.cache` in a task that reads some splits only: each split is recorded by itself, whoever gets it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsnb.cache.backends import Unwritable
from dsnb.cache.frames import Run, handed_out, nbytes_of
from dsnb.cache.opened import FileNote
from dsnb.cache.recording import Place
from dsnb.cache.split_recording import SplitRecording
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError, DataLossError
from dsnb.pipeline.engine.resume_point import Marks, ResumePoint
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import BuildContext, Operation, walk

if TYPE_CHECKING:
    from dsnb.pipeline.operations.cache import Pipeline

_CHUNK_S = 1.0


class OneRun:
    """A feed that hands out one run of splits."""

    def __init__(self, first: int, end: int) -> None:
        self._run = (first, end)

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        """The run."""
        del provider, repetition
        return iter([self._run])

    def repetition(self, provider: int) -> int:
        """The only one."""
        del provider
        return 0


class SplitCacheStage(Stage):
    """Reads splits that are recorded, produces and records the others.

    Args:
        name: The operation's.
        operation: The input.
        context: Of the task.
        recording: Where to.
        wrap: Runs the input, as frames.
        chunk_bytes: What is written at once.
    """

    def __init__(
        self,
        name: str,
        operation: Operation,
        context: BuildContext,
        recording: SplitRecording,
        wrap: Callable[[BuildContext], Pipeline],
        chunk_bytes: int,
    ) -> None:
        super().__init__(name)
        assert context.splits is not None
        self._operation = operation
        self._context = replace(
            context,
            entropy=recording.entropy,
            passes=(0,),
            provider=0,
            deterministic=True,
            room=None,
            copied_later=False,
        )
        self._lends = context.copied_later
        self._feed, self._provider = context.splits, context.provider
        self._runs = self._feed.open(self._provider)
        self._repetition = self._feed.repetition(self._provider)
        self._taken = 0
        self._resume_marks = Marks()
        self._recording = recording
        self._wrap = wrap
        self._chunk_bytes = chunk_bytes
        self._one_each = all(step.elementwise or not step.inputs for step in walk(operation)) and _counted(operation)
        self._pipeline: Pipeline | None = None
        self._work: list[tuple[int, int, Any]] = []
        self._ready: Iterator[Run] = iter(())
        self._left: Run = []
        self._want = 1

    @property
    def lends(self) -> bool:
        """Views of what is recorded where they are copied later, else copies."""
        return self._lends

    def resume_point(self, count: int) -> ResumePoint:
        """Behind the splits that it is done with, and the elements of the next ones that it gave."""
        mark = self._resume_marks.before(count) if self._resume_marks is not None else None
        given, _, splits = mark or (-self._begun.skip, 0, 0)
        return ResumePoint(skip=count - given, provider=self._provider, repetition=self._repetition, splits=splits)

    def begin_at(self, point: ResumePoint) -> None:
        """Begin there."""
        if point.repetition:
            self._runs = self._feed.open(self._provider, point.repetition)
            self._repetition = point.repetition
        super().begin_at(point)

    def produce(self, want: int) -> Run:
        """The next elements of the splits in hand, or of the next ones."""
        self._want = want
        while not len(self._left):
            self._left = next(self._ready, [])
            if not len(self._left) and not self._next_splits():
                return []
        run, self._left = self._left[:want], self._left[want:]
        return run

    def _next_splits(self) -> bool:
        """Begin with the next splits; False if there are none."""
        self.mark(self._taken - sum(end - first for first, end, _ in self._work))
        if not self._work:
            piece = next(self._runs, None)
            if piece is None:
                return False
            self._taken += piece[1] - piece[0]
            self._work = list(reversed(self._recording.cut(*piece)))
        first, end, found = self._work.pop()
        if found is None:
            self._make_some(first, end)
        else:
            self._ready = self._recorded(first, end, found)
        return True

    def _recorded(self, first: int, end: int, piece: Any) -> Iterator[Run]:
        """The elements of recorded splits; if they cannot be read, nothing, and the splits are produced."""
        try:
            found = list(self._recording.read(piece, first, end))
        except DataLossError as damage:
            self._recording.give_up(piece, damage)
        except Unwritable as refusal:
            self._recording.stop_reading(refusal.page)
        else:
            return (handed_out(frame, low, high, copied_later=self._lends) for frame, low, high in found)
        self._work.append((first, end, None))
        return iter(())

    def _make_some(self, first: int, end: int) -> None:
        """Produce one split of a run; or the whole run, where each split is one element."""
        stop = end if self._one_each else first + 1
        if stop < end:
            self._work.append((stop, end, None))
        self._pipeline = self._wrap(replace(self._context, splits=OneRun(first, stop)))
        making = _Making(
            self._recording, first, self._chunk_bytes, one_each=self._one_each, take_files=self._pipeline.take_files
        )
        self._ready = _Runs(self._pipeline, making, lambda: self._want, self._done, copied_later=self._lends)

    def _done(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()

    def cancel(self) -> None:
        """End the pipeline, too."""
        super().cancel()
        if self._pipeline is not None:
            self._pipeline.cancel()

    def release(self, unread: int) -> None:
        """Let go of the pipeline and the store."""
        if isinstance(self._ready, _Runs):
            self._ready.stop()
        self._done()
        self._recording.close()


def _counted(operation: Operation) -> bool:
    """Whether a chain's source has as many elements as splits."""
    (source,) = (step for step in walk(operation) if not step.inputs)
    provider = source.split_provider()
    return provider is not None and provider.count == source.cardinality


class _Making:
    """Splits that are being produced: what is whole of them is committed, a split with a failure is not."""

    def __init__(
        self,
        recording: SplitRecording,
        first: int,
        chunk_bytes: int,
        *,
        one_each: bool,
        take_files: Callable[[], tuple[FileNote, ...]],
    ) -> None:
        self._recording = recording
        self._take_files = take_files
        self._chunk_bytes = chunk_bytes
        self._one_each = one_each
        self._first = first
        self._count = 0
        self._since = time.monotonic()
        self._frames: list[Frame] = []
        self._places: list[Place] = []
        self._failed = False

    def add(self, frames: list[Frame]) -> None:
        """More elements."""
        self._frames += frames
        self._count += sum(frame.count for frame in frames)
        full = nbytes_of(self._frames) >= self._chunk_bytes
        if self._one_each and (full or time.monotonic() - self._since >= _CHUNK_S):
            self.commit()
        elif full:
            self._write()

    def fail(self) -> None:
        """An element failed: its split is tried again by the next pass."""
        if self._one_each:
            self.commit()
            self._first += 1
        else:
            self._failed = True

    def _write(self) -> None:
        self._places += self._recording.keep(self._frames)
        self._frames = []

    def commit(self) -> None:
        """Commit what is whole: all elements up to now, where each is a split; else the one split."""
        self._write()
        counts = [1] * self._count if self._one_each else [self._count]
        if not self._failed:
            self._recording.add(self._first, counts, self._places, self._take_files())
        self._first += len(counts)
        self._places, self._count, self._since = [], 0, time.monotonic()

    def stop(self) -> None:
        """The reader leaves in the middle."""
        if self._one_each:
            self.commit()


class _Runs(Iterator[Run]):
    """The elements of splits that are being produced, recorded on the way."""

    def __init__(
        self,
        pipeline: Pipeline,
        making: _Making,
        want: Callable[[], int],
        done: Callable[[], None],
        *,
        copied_later: bool,
    ) -> None:
        self._pipeline = pipeline
        self._copied_later = copied_later
        self._want = want
        self._making: _Making | None = making
        self._done = done

    def __next__(self) -> Run:
        making = self._making
        if making is None:
            raise StopIteration
        try:
            frames = self._pipeline.pull(self._want())
        except CancelledError:
            raise
        except Exception:
            making.fail()
            raise
        if not frames:
            self._making = None
            making.commit()
            self._done()
            raise StopIteration
        making.add(frames)
        found = [handed_out(frame, 0, frame.count, copied_later=self._copied_later) for frame in frames]
        return found[0] if len(found) == 1 else [element for run in found for element in as_list(run)]

    def stop(self) -> None:
        """Commit what is whole."""
        making, self._making = self._making, None
        if making is not None:
            making.stop()
