"""The disk under a task's window: frames that trainers have still to come, and that memory has no room for.

Frames lie in files that have no name (so nothing can be left behind), each of a fixed size that is reserved before it
is written: a full disk is an answer, not a crash. A file is closed, and its room given back, when its last frame goes.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.elements.columns import Layout, bytes_of, column_from, lay_out
from dsnb.elements.frame import Frame
from dsnb.elements.structure import Structure

_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SpilledFrame:
    """All of a frame but its body, and where that lies."""

    structure: Structure
    layouts: Sequence[Layout]
    count: int
    file: SpillFile
    offset: int
    nbytes: int


class SpillFile:
    """One file without a name; `left` counts the frames in it.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, folder: str, size: int) -> None:
        self.size = size
        self.used = 0
        self.left = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix="dsnb-spill-")  # noqa: SIM115 - closed by close()
        try:
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError:
            self._file.close()
            raise

    def write(self, buffers: Sequence[Any], nbytes: int) -> int:
        """Write a frame's body behind what is there; gives where it begins."""
        begin = at = self.used
        for buffer in buffers:
            at += _write(self._file.fileno(), buffer, at)
        self.used = begin + nbytes
        self.left += 1
        return begin

    def read(self, offset: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A body, in an array of its own."""
        body = np.empty(nbytes, np.uint8)
        view, at = body.data, 0
        while at < nbytes:
            at += os.preadv(self._file.fileno(), [view[at:]], offset + at)
        body.flags.writeable = False
        return body

    def close(self) -> None:
        self._file.close()


class SpillLimit:
    """The bytes on disk that all tasks of a worker may take together."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Reserve so many bytes; False if there are not so many left."""
        with self._lock:
            if self.used + nbytes > self.nbytes:
                return False
            self.used += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes


class Spill:
    """Keeps frames of one task on disk; see `worker.frames.Store`.

    Args:
        folder: Where the files lie.
        limit: What all tasks may take together.
    """

    def __init__(self, folder: str, limit: SpillLimit) -> None:
        self.nbytes = 0
        """Bytes of the frames on disk."""
        self._folder = folder
        self._limit = limit
        self._files: list[SpillFile] = []
        self._used_when_full: int | None = None
        """What was taken of the limit when there was no room."""

    def put(self, frame: Frame) -> SpilledFrame | Frame | None:
        """Put a frame on disk. An error in an element's place is small, and stays what it is."""
        if frame.failure is not None:
            return frame
        layouts, buffers, nbytes = lay_out(frame.columns, 0, frame.count)
        file = self._file_for(nbytes)
        if file is None:
            return None
        offset = file.write(buffers, nbytes)
        self.nbytes += nbytes
        return SpilledFrame(frame.structure, layouts, frame.count, file, offset, nbytes)

    def get(self, location: SpilledFrame | Frame) -> Frame:
        """Read a frame. What it holds belongs to this call's caller: no other reader sees what becomes of it."""
        if isinstance(location, Frame):
            return location
        body = location.file.read(location.offset, location.nbytes)
        return Frame(
            location.structure, [column_from(x, body, location.count) for x in location.layouts], location.count
        )

    def drop(self, location: SpilledFrame | Frame) -> None:
        """Let a frame go, and its file with the last one in it."""
        if isinstance(location, Frame):
            return
        self.nbytes -= location.nbytes
        location.file.left -= 1
        if not location.file.left and location.file is not self._files[-1]:
            self._close(location.file)

    def has_room(self) -> bool:
        """Whether there was room at the last try, or may be now: a file that goes makes some."""
        return self._used_when_full is None or self._limit.used < self._used_when_full

    def close(self) -> None:
        """Let everything go."""
        for file in list(self._files):
            self._close(file)
        self.nbytes = 0

    def _file_for(self, nbytes: int) -> SpillFile | None:
        if self._files and self._files[-1].size - self._files[-1].used >= nbytes:
            return self._files[-1]
        size = max(_FILE_BYTES, nbytes)
        if not self._limit.take(size):
            self._used_when_full = self._limit.used
            return None
        try:
            file = SpillFile(self._folder, size)
        except OSError:
            self._limit.give_back(size)
            self._used_when_full = self._limit.used
            return None
        self._used_when_full = None
        before = self._files[-1] if self._files else None
        self._files.append(file)
        if before is not None and not before.left:
            self._close(before)
        return file

    def _close(self, file: SpillFile) -> None:
        file.close()
        self._files.remove(file)
        self._limit.give_back(file.size)


def _write(fd: int, buffer: Any, offset: int) -> int:
    """Write all of a buffer; gives how many bytes that were."""
    rest = bytes_of(buffer)
    total = len(rest)
    while len(rest):
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
    return total
