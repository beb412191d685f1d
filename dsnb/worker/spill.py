"""Disk storage for frames that a task's trainers still need and that do not fit into memory.

Frames are stored in unnamed files, so that no file is left over after a crash. The disk space of each file is reserved
before it is written: a full disk is reported when a file is made, and never fails a write. A file is closed, and
its space freed, when its last frame is dropped.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

import msgspec
import numpy as np

from dsnb.elements.allocation import empty_aligned
from dsnb.elements.columns import Layout, bytes_of, column_from, lay_out
from dsnb.elements.frame import Frame
from dsnb.elements.structure import Structure
from dsnb.storage.failpoints import Failpoint

_WRITE = Failpoint("spill write", error=None)  # room was allocated before
_FILE_BYTES = 64 << 20


class SpilledFrame(msgspec.Struct, frozen=True):
    """A frame whose body is on disk: everything else of it, and the location of the body."""

    structure: Structure
    layouts: Sequence[Layout]
    count: int
    file: SpillFile
    offset: int
    nbytes: int


class SpillFile:
    """One unnamed file; `left` counts the frames in it that were not dropped.

    Args:
        folder: The folder whose disk the file is on.
        size: Its size in bytes, reserved at once.

    Raises:
        OSError: the disk has no room for it.
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
        """Append a frame's body; returns its offset."""
        begin = at = self.used
        for buffer in buffers:
            at += _write(self._file.fileno(), buffer, at)
        self.used = begin + nbytes
        self.left += 1
        return begin

    def read(self, offset: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Read a frame's body into a new, read-only array."""
        body = empty_aligned(nbytes)
        view, at = body.data, 0
        while at < nbytes:
            at += os.preadv(self._file.fileno(), [view[at:]], offset + at)
        body.flags.writeable = False
        return body

    def close(self) -> None:
        self._file.close()


class SpillLimit:
    """How many bytes on disk all tasks of a worker may use together. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Reserve `nbytes` bytes; False if fewer are left."""
        with self._lock:
            if self.used + nbytes > self.nbytes:
                return False
            self.used += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes


class Spill:
    """Keeps frames of one task on disk; see `worker.frame_log.FrameStore`.

    Args:
        folder: The folder for the files.
        limit: The limit for all tasks together.
    """

    def __init__(self, folder: str, limit: SpillLimit) -> None:
        self.nbytes = 0
        """Bytes of the frames on disk."""
        self._folder = folder
        self._limit = limit
        self._files: list[SpillFile] = []
        self._used_when_full: int | None = None
        """How many bytes of the limit were used when there was no room the last time; None if there was room."""

    def put(self, frame: Frame) -> SpilledFrame | Frame | None:
        """Write a frame to disk; None if there is no room. A frame that is an error is small, and stays in memory."""
        if frame.failure is not None:
            return frame
        layouts, buffers, nbytes = lay_out(frame.columns, 0, frame.count)
        file = self._file_for(nbytes)
        if file is None:
            return None
        with _WRITE:
            offset = file.write(buffers, nbytes)
        self.nbytes += nbytes
        return SpilledFrame(frame.structure, layouts, frame.count, file, offset, nbytes)

    def get(self, location: SpilledFrame | Frame) -> Frame:
        """Read a frame. Its memory belongs to the caller alone, so writes to it reach no other reader."""
        if isinstance(location, Frame):
            return location
        body = location.file.read(location.offset, location.nbytes)
        return Frame(
            location.structure, [column_from(x, body, location.count) for x in location.layouts], location.count
        )

    def drop(self, location: SpilledFrame | Frame) -> None:
        """Delete a frame; a file is closed with its last frame, unless it is still being filled."""
        if isinstance(location, Frame):
            return
        self.nbytes -= location.nbytes
        location.file.left -= 1
        if not location.file.left and location.file is not self._files[-1]:
            self._close(location.file)

    def has_room(self) -> bool:
        """Whether the last attempt found room, or files were closed since then, which frees some."""
        return self._used_when_full is None or self._limit.used < self._used_when_full

    def close(self) -> None:
        """Delete all frames and close all files."""
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
        # `drop` never closes the newest file. If all frames of the previous one are dropped already, close it now.
        if before is not None and not before.left:
            self._close(before)
        return file

    def _close(self, file: SpillFile) -> None:
        file.close()
        self._files.remove(file)
        self._limit.give_back(file.size)


def _write(fd: int, buffer: Any, offset: int) -> int:
    """Write all of a buffer at `offset`; returns its number of bytes."""
    rest = bytes_of(buffer)
    total = len(rest)
    while len(rest):
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
    return total
