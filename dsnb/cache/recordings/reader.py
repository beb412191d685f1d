"""A reader of a recording, which can start at any position."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence

from dsnb.cache.opened_files import FileState
from dsnb.cache.recordings.backends import PipelineRecordings
from dsnb.cache.recordings.frames import Run, elements_for_reader
from dsnb.cache.recordings.recorder import FallBackToPipeline, Recorder
from dsnb.cache.recordings.shield import Shield
from dsnb.cache.recordings.writer import RecordingPlan
from dsnb.elements.frame import Frame


class RecordingReader:
    """Reads a recording from its own position; all readers of the same pipeline in this process share one recorder.

    Args:
        recordings: The recordings of the pipeline.
        plan: How to record it.
        copied_later: Whether elements may be views of frames that are kept, because the caller copies them.

    Attributes:
        position: The index of the next element to read.
        wanted: How many elements the reader waits for, counted from the start of the recording, and how many it can
            use; None while it does not wait.
        wakeups: Gets an item when a waiting reader should look again.
        error: An error to raise once; the next `pull` tries again.
        fallback: An exception to raise from now on.
        shield: Makes the calls to servers.
        cancelled: Whether `cancel` or `close` was called.
    """

    def __init__(self, recordings: PipelineRecordings, plan: RecordingPlan, *, copied_later: bool = False) -> None:
        self._copied_later = copied_later
        self._frame_start = 0
        self._frame: Frame | None = None
        self.position = 0
        self.wanted: tuple[int, int] | None = None
        self.wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.error: Exception | None = None
        self.fallback: FallBackToPipeline | None = None
        self.cancelled = False
        self.shield = Shield()
        self._recorder = _join(self, recordings, plan)

    def pull(self, want: int) -> Run:
        """Return at most `want` more elements; none at the end.

        Raises:
            FallBackToPipeline: the caller must run the pipeline from here on.
            CancelledError: `cancel` was called.
            DsnbError: the recording cannot be continued, and elements of it were already read.
        """
        frame = self._frame
        if frame is None or not self._frame_start <= self.position < self._frame_start + frame.count:
            found = self._recorder.frame_at(self, want)
            if found is None:
                return []
            self._frame = None  # an interrupt between the next lines must not leave a frame with the wrong start
            self._frame_start, frame = found
            self._frame = frame
        start = self.position - self._frame_start
        run = elements_for_reader(frame, start, min(start + want, frame.count), copied_later=self._copied_later)
        self.position += len(run)
        return run

    def skip(self, count: int) -> int:
        """Advance by `count` elements without reading them; missing ones are recorded first.

        Returns:
            How many elements were skipped: fewer than `count` if the end came first.

        Raises:
            FallBackToPipeline: as `pull` does.
        """
        there = self._recorder.wait_for_elements(self, self.position + count, 1)
        count = max(0, min(count, there - self.position))
        self.position += count
        return count

    def files(self) -> Sequence[FileState]:
        """The states of the files that were opened for the elements that can be read now."""
        return self._recorder.files()

    def cancel(self) -> None:
        """Make a waiting `pull` raise `CancelledError`, from any thread."""
        self.cancelled = True
        self.wakeups.put(None)
        self._recorder.on_reader_cancelled()

    def close(self) -> None:
        """Leave the recorder; after the last reader it commits what was produced and releases the lease."""
        self.cancelled = True
        self.wakeups.put(None)
        self._recorder.remove_reader(self)
        self.shield.close()


_lock = threading.Lock()
_recorders: dict[tuple[str, str], Recorder] = {}


def _join(reader: RecordingReader, recordings: PipelineRecordings, plan: RecordingPlan) -> Recorder:
    with _lock:
        recorder = _recorders.get(recordings.key)
        if recorder is None or not recorder.add_reader(reader):
            recorder = _recorders[recordings.key] = Recorder(recordings, plan, _forget)
            recorder.add_reader(reader)
        return recorder


def _forget(recorder: Recorder) -> None:
    with _lock:
        if _recorders.get(recorder.key) is recorder:
            del _recorders[recorder.key]


def _reset_after_fork() -> None:
    """Forget the recorders after a fork: they are the parent's, and another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _recorders.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
