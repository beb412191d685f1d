"""The segment files that hold a recording's frames: each is written by one writer and read frame by frame.

On local file systems one segment takes many chunks, to keep the number of files low. On others each chunk is a file of
its own, closed before it is committed, because another host may not see a file grow.

Frames are read into the reader's own memory, not mapped. If a mapped file is truncated (`cp`, `rsync --inplace`), or
its disk or server fails, the process that accesses the mapping is killed with SIGBUS; with a read, this is an ordinary
error. The price is a copy, which for small frames stays within the processor's caches, because a frame's memory is
reused for a later frame. A reader that forcibly modifies elements, as torch does, changes only its own copy. Every read
compares the frame with its digest.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from dsnb.cache.recordings.backends import StoreFailed
from dsnb.cache.recordings.frames import decode_frame, digest_of, encode_frame
from dsnb.cache.recordings.recording import FrameRef
from dsnb.cache.recordings.removal import SEGMENT_NAME
from dsnb.elements.allocation import ALIGNMENT, aligned_part
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError
from dsnb.storage import files
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.process_identity import is_gone, this_process

SEGMENT_BYTES: Final = 512 << 20
_ALIGN: Final = 4096
_SUFFIX: Final = ".seg"
_RETRY_INTERVAL_S: Final = 0.25
ATTRIBUTE_CACHE_S: Final = 60.0
"""How long a network file system may take to show what another host has written: the lifetime of attribute caches."""

_PROCESS_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})
"""Errors of this process or its limits, which do not mean that the file is damaged."""

_MAKE = Failpoint("segment make")
_WRITE = Failpoint("segment write")
_SYNC = Failpoint("segment sync")
_FOLDER = Failpoint("segment folder")
_REMOVE = Failpoint("segment remove")


class SegmentWriter:
    """Writes frames to segments of its own.

    Args:
        folder: The folder for the segments, which exists.
        append_chunks: Whether one segment may take several chunks.
        make_room: Called with the number of bytes that are about to be written.
    """

    def __init__(self, folder: str, append_chunks: bool, make_room: Callable[[int], None] = lambda _: None) -> None:
        self._folder = folder
        self._append_chunks = append_chunks
        self._make_room = make_room
        self._descriptor: int | None = None
        self._name = ""
        self._end = 0

    def write(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        """Write frames; they are on disk when this returns.

        Raises:
            OSError: the system's error; the next call begins a new segment.
        """
        try:
            refs = self._write(frames)
        except BaseException:
            self.close()  # after an error the kernel may have dropped data: nothing more may go into this file
            raise
        if not self._append_chunks or self._end >= SEGMENT_BYTES:
            self.close()
        return refs

    def _write(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        encoded = [(frame.count, *encode_frame(frame)) for frame in frames]
        self._make_room(sum(nbytes + -nbytes % _ALIGN for _, _, nbytes, _ in encoded))
        descriptor = self._open()
        refs = []
        with _WRITE:
            for count, buffers, nbytes, digest in encoded:
                files.write_all(descriptor, [*buffers, bytes(-nbytes % _ALIGN)])
                refs.append(FrameRef(name=self._name, offset=self._end, nbytes=nbytes, count=count, digest=digest))
                self._end += nbytes + -nbytes % _ALIGN
        with _SYNC:
            os.fdatasync(descriptor)
        return tuple(refs)

    def _open(self) -> int:
        if self._descriptor is None:
            self._name = f"{this_process().unique_id()}-{secrets.token_hex(4)}{_SUFFIX}"
            self._end = 0
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with _MAKE:
                self._descriptor = os.open(os.path.join(self._folder, self._name), flags, 0o666)
            files.sync_folder(self._folder, _FOLDER)
        return self._descriptor

    def close(self) -> None:
        """Close the segment; the next write begins a new one."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _OpenFile:
    """A file that stays open for reading as long as a reference to it exists."""

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _BufferPool:
    """Memory for frames: a buffer is reused for a later frame as soon as no element refers to it.

    New memory from the system has to be mapped and cleared page by page, which takes longer than filling it.
    """

    def __init__(self) -> None:
        self._buffers: list[np.ndarray[Any, Any]] = []

    def get(self, nbytes: int) -> np.ndarray[Any, Any]:
        """An array of `nbytes` bytes."""
        memory = self._reusable_buffer(nbytes + ALIGNMENT)
        if memory is None:
            memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        self._buffers.append(memory)
        return aligned_part(memory, nbytes)

    def _reusable_buffer(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        try:
            memory = self._buffers.pop(0) if len(self._buffers) > 1 else None
        except IndexError:  # another thread was here first
            return None
        # An element that is a view of the buffer holds a reference to it, so the count shows whether it is still used.
        if memory is None or sys.getrefcount(memory) > _UNSHARED_REFCOUNT or not nbytes <= len(memory) <= 2 * nbytes:
            return None
        return memory


def _refcount_of_one_name() -> int:
    """`sys.getrefcount` of an object with one local name; it differs between Python versions."""
    memory = np.empty(0, np.uint8)
    return sys.getrefcount(memory)


_UNSHARED_REFCOUNT: Final = _refcount_of_one_name()


class SegmentReader:
    """Reads frames from segments and compares each with its digest.

    Args:
        folder: The folder of the segments.
        retry_s: For how many seconds to reopen a file that seems damaged: on a network file system this host may not
            see yet what another host has written.
    """

    def __init__(self, folder: str, retry_s: float = 0.0) -> None:
        self._folder = folder
        self._retry_s = retry_s
        self._buffer_pool = _BufferPool()
        self._last_file: tuple[str, _OpenFile] | None = None
        """The file that was read last; the next frame is usually in it too. A concurrent read keeps its own alive."""

    def read_frame(self, ref: FrameRef) -> Frame:
        """Read a frame.

        Raises:
            DataLossError: the file is missing, too short, or has other content; the error names it.
            StoreFailed: this process may not read the file, or has too many files open.
        """
        return decode_frame(self._read(ref))

    def verify(self, ref: FrameRef) -> None:
        """Read a frame and compare it with its digest.

        Raises:
            DataLossError: as `read_frame` does.
        """
        self._read(ref)

    def _read(self, ref: FrameRef) -> np.ndarray[Any, Any]:
        deadline = time.monotonic() + self._retry_s
        while True:
            try:
                return self._read_once(ref)
            except DataLossError:
                self._last_file = None
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_INTERVAL_S)

    def _read_once(self, ref: FrameRef) -> np.ndarray[Any, Any]:
        data = self._buffer_pool.get(ref.nbytes)
        try:
            got = _read_into(self._file(ref.name), data, ref.offset)
        except OSError as error:
            if error.errno in _PROCESS_ERRORS:
                raise StoreFailed(
                    files.translate_os_error(error, f"reading {os.path.join(self._folder, ref.name)}")
                ) from error
            gone = isinstance(error, FileNotFoundError)
            raise self._damage_error(ref, "it is gone" if gone else error.strerror or str(error)) from error
        if got < ref.nbytes:
            raise self._damage_error(ref, f"it has {ref.offset + got:,} bytes of {ref.offset + ref.nbytes:,}")
        if digest_of(data) != ref.digest:
            raise self._damage_error(ref, f"{ref.nbytes:,} bytes from {ref.offset:,} are not what was written")
        data.flags.writeable = False
        return data

    def _file(self, name: str) -> _OpenFile:
        last = self._last_file
        if last is None or last[0] != name:
            last = self._last_file = name, _OpenFile(os.path.join(self._folder, name))
        return last[1]

    def _damage_error(self, ref: FrameRef, why: str) -> DataLossError:
        return DataLossError(
            f"the segment {os.path.join(self._folder, ref.name)} is damaged: {why}",
            hint="check the disk for errors",
        )

    def close(self) -> None:
        """Close the file that was read last."""
        self._last_file = None


def _read_into(file: _OpenFile, data: np.ndarray[Any, Any], offset: int) -> int:
    """Fill an array from an offset in a file; returns the number of bytes that were read before the end of the file."""
    view, got = data.data, 0
    while got < len(view):
        count = os.preadv(file.descriptor, [view[got:]], offset + got)
        if not count:
            break
        got += count
    return got


def segment_names(folder: str) -> list[str]:
    """The names of all segments in a folder."""
    return [name for name in files.names_in(folder) if re.fullmatch(SEGMENT_NAME, name)]


def orphan_segments(folder: str) -> list[str]:
    """The names of segments whose writers have ended."""
    return [name for name in segment_names(folder) if is_gone(name.removesuffix(_SUFFIX).rpartition("-")[0])]


def remove_segments(folder: str, names: Iterable[str]) -> int:
    """Remove segments; returns the number of those that existed."""
    return sum(files.remove(os.path.join(folder, name), _REMOVE) for name in sorted(names))
