"""Reading a recording, from any position."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence

from dsnb.cache.backends import PipelineRecordings
from dsnb.cache.frames import Run, elements_for_reader
from dsnb.cache.opened_files import FileState
from dsnb.cache.recorder import FallBackToPipeline, Recorder
from dsnb.cache.shield import Shield
from dsnb.cache.writer import RecordingPlan
from dsnb.elements.frame import Frame


class RecordingReader:
    """One reader's place in a recording; reads together with all who read the same in this process.

    Args:
        recordings: Where it is, or will be.
        plan: How to record it.
        copied_later: Whether elements may be views of what is kept.

    Attributes:
        position: The index of the next element to read.
        wanted: Up to which element it waits, and how many it would take at most; None while it does not wait.
        wakeups: Gets an item when there is something new for a reader that waits.
        error: What to raise at once; the next `pull` tries again.
        fallback: What to raise from now on.
        shield: Reads from servers.
        cancelled: Whether `cancel` was called.
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
        """At most `want` more elements; none at the end.

        Raises:
            Alone: the reader has to go on by itself.
            CancelledError: after `cancel`.
            DsnbError: the recording cannot be gone on with, and elements of it have been seen.
        """
        frame = self._frame
        if frame is None or not self._frame_start <= self.position < self._frame_start + frame.count:
            found = self._recorder.frame_at(self, want)
            if found is None:
                return []
            self._frame = None  # an interrupt in between finds no frame of another place
            self._frame_start, frame = found
            self._frame = frame
        start = self.position - self._frame_start
        run = elements_for_reader(frame, start, min(start + want, frame.count), copied_later=self._copied_later)
        self.position += len(run)
        return run

    def skip(self, count: int) -> int:
        """Go on `count` elements further; what is recorded is not even looked at.

        Returns:
            How many there were, if the end came first.

        Raises:
            Alone: as `pull` does.
        """
        there = self._recorder.wait_for_elements(self, self.position + count, 1)
        count = max(0, min(count, there - self.position))
        self.position += count
        return count

    def files(self) -> Sequence[FileState]:
        """The files that were opened for what can be read."""
        return self._recorder.files()

    def cancel(self) -> None:
        """Let a pull that waits end, from any thread."""
        self.cancelled = True
        self.wakeups.put(None)
        self._recorder.on_reader_cancelled()

    def close(self) -> None:
        """Leave; the last reader commits what was produced and gives the lease back."""
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
    """After a fork: the recorders are the parent's, and another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _recorders.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
