"""Reading a recording, from any position."""

from __future__ import annotations

import threading

from dsnb.cache.backends import Shelf
from dsnb.cache.frames import Run, rows
from dsnb.cache.recorder import Recorder
from dsnb.cache.writer import Plan
from dsnb.elements.frame import Frame

_MANY = 1024


class Reader:
    """One reader's place in a recording; reads together with all who read the same in this process.

    Args:
        shelf: Where it is, or will be.
        plan: How to record it.
    """

    def __init__(self, shelf: Shelf, plan: Plan) -> None:
        self._first = 0
        self._frame: Frame | None = None
        self.position = 0
        self.cancelled = threading.Event()
        self._recorder = _join(self, shelf, plan)

    def pull(self, want: int) -> Run:
        """At most `want` more elements; none at the end.

        Raises:
            Alone: the reader has to go on by itself.
            CancelledError: after `cancel`.
            DsnbError: the recording cannot be gone on with, and elements of it have been seen.
        """
        frame = self._frame
        if frame is None or not self._first <= self.position < self._first + frame.count:
            found = self._recorder.frame_at(self, want)
            if found is None:
                return []
            self._first, frame = found
            self._frame = frame
        start = self.position - self._first
        run = rows(frame, start, min(start + want, frame.count))
        self.position += len(run)
        return run

    def skip(self, count: int) -> int:
        """Go on `count` elements further; what is recorded is not even looked at.

        Returns:
            How many there were, if the end came first.

        Raises:
            Alone: as `pull` does.
        """
        there = self._recorder.reach(self, self.position + count, _MANY)
        count = max(0, min(count, there - self.position))
        self.position += count
        return count

    def cancel(self) -> None:
        """Let a pull that waits end, from any thread."""
        self.cancelled.set()
        self._recorder.note_cancelled()

    def close(self) -> None:
        """Leave; the last reader commits what was produced and gives the lease back."""
        self.cancelled.set()
        self._recorder.leave(self)


_lock = threading.Lock()
_recorders: dict[tuple[str, str], Recorder] = {}


def _join(reader: Reader, shelf: Shelf, plan: Plan) -> Recorder:
    with _lock:
        recorder = _recorders.get(shelf.key)
        if recorder is None or not recorder.admit(reader):
            recorder = _recorders[shelf.key] = Recorder(shelf, plan, _forget)
            recorder.admit(reader)
        return recorder


def _forget(recorder: Recorder) -> None:
    with _lock:
        if _recorders.get(recorder.key) is recorder:
            del _recorders[recorder.key]
