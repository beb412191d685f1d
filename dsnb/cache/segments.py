"""The files that hold a recording's frames: written by one writer each, read as mappings.

Where file systems are the host's own, one file takes many chunks, because large mappings are read faster; elsewhere
each chunk is one file that is closed before it is committed, because another host may not see a file grow.

A mapping is private and writable underneath, although what is handed out is read-only: who writes to it by force (torch
does) changes a page of its own process instead of being killed.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from dsnb.cache import files
from dsnb.cache.faults import Point
from dsnb.cache.frames import decode, digest_of, encode
from dsnb.cache.process import here, is_gone
from dsnb.cache.recording import Place
from dsnb.dataclass import dataclass
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError

SEGMENT_BYTES: Final = 512 << 20
_ALIGN: Final = 4096
_SUFFIX: Final = ".seg"
_LOOK_AGAIN_S: Final = 0.25
PATIENCE_S: Final = 60.0
"""How long network file systems may take to show what another host has written: their attribute caches' time."""

_MOST_KNOWN: Final = 4096
"""Of how many segments a process remembers what it has compared."""

_MAKE = Point("segment make")
_WRITE = Point("segment write")
_SYNC = Point("segment sync")
_FOLDER = Point("segment folder")
_REMOVE = Point("segment remove")


class SegmentWriter:
    """Writes frames to segments of its own.

    Args:
        folder: Where they lie; it is there already.
        growing: Whether one segment may take several chunks.
        make_room: Called with the bytes that are about to be written.
    """

    def __init__(self, folder: str, growing: bool, make_room: Callable[[int], None] = lambda _: None) -> None:
        self._folder = folder
        self._growing = growing
        self._make_room = make_room
        self._descriptor: int | None = None
        self._name = ""
        self._end = 0

    def write(self, frames: Sequence[Frame]) -> tuple[Place, ...]:
        """Write frames; they are on the disk when this returns.

        Raises:
            OSError: as the system has it; then a new segment is begun with the next call.
        """
        try:
            places = self._write(frames)
        except BaseException:
            self.close()  # what the kernel could not write it may have forgotten: nothing more goes into this file
            raise
        if not self._growing or self._end >= SEGMENT_BYTES:
            self.close()
        return places

    def _write(self, frames: Sequence[Frame]) -> tuple[Place, ...]:
        encoded = [(frame.count, *encode(frame)) for frame in frames]
        self._make_room(sum(nbytes + -nbytes % _ALIGN for _, _, nbytes, _ in encoded))
        descriptor = self._open()
        places = []
        with _WRITE:
            for count, buffers, nbytes, digest in encoded:
                files.write_all(descriptor, [*buffers, bytes(-nbytes % _ALIGN)])
                places.append(Place(name=self._name, offset=self._end, nbytes=nbytes, count=count, digest=digest))
                self._end += nbytes + -nbytes % _ALIGN
        with _SYNC:
            os.fdatasync(descriptor)
        return tuple(places)

    def _open(self) -> int:
        if self._descriptor is None:
            self._name = f"{here().short()}-{secrets.token_hex(4)}{_SUFFIX}"
            self._end = 0
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with _MAKE:
                self._descriptor = os.open(os.path.join(self._folder, self._name), flags, 0o666)
            files.sync_folder(self._folder, _FOLDER)
        return self._descriptor

    def close(self) -> None:
        """Close the segment; the next write begins another."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_compared: OrderedDict[tuple[int, int, int], set[int]] = OrderedDict()
_compared_lock = threading.Lock()


def _compared_in(status: os.stat_result) -> set[int]:
    """Where the frames begin that this process has compared with their digests, in a file as it is now.

    What has been written to since is another file. A worker opens a recording for each pass, and so compares it once.
    """
    with _compared_lock:
        known = _compared.setdefault((status.st_dev, status.st_ino, status.st_mtime_ns), set())
        _compared.move_to_end((status.st_dev, status.st_ino, status.st_mtime_ns))
        if len(_compared) > _MOST_KNOWN:
            _compared.popitem(last=False)
        return known


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A segment, as far as it was written when it was mapped; and where the frames begin that have been compared."""

    data: np.ndarray[Any, Any]
    compared: set[int]


class SegmentReader:
    """Reads frames as views of mapped segments; each is compared with its digest before this process first uses it.

    Args:
        folder: Where the segments lie.
        patience: For how many seconds a file is opened again when it seems damaged: on a network file system it may
            only be that this host does not see yet what another one has written.
    """

    def __init__(self, folder: str, patience: float = 0.0) -> None:
        self._folder = folder
        self._patience = patience
        self._lock = threading.Lock()
        self._mapped: dict[str, _Mapped] = {}

    def frame(self, place: Place) -> Frame:
        """A frame.

        Raises:
            DataLossError: naming the file: it is gone, too short, or holds something else.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                segment = self._segment(place)
                data = segment.data[place.offset : place.offset + place.nbytes]
                if place.offset not in segment.compared:
                    self._compare(data, place)
                    segment.compared.add(place.offset)
                return decode(data)
            except DataLossError:
                if time.monotonic() >= deadline:
                    raise
            with self._lock:
                self._mapped.pop(place.name, None)
            time.sleep(_LOOK_AGAIN_S)

    def verify(self, place: Place) -> None:
        """Compare a frame with its digest again.

        Raises:
            DataLossError: as `frame` does.
        """
        self._compare(self._segment(place).data[place.offset : place.offset + place.nbytes], place)

    def _compare(self, data: np.ndarray[Any, Any], place: Place) -> None:
        if digest_of(data) != place.digest:
            raise self._damaged(place, f"{place.nbytes:,} bytes from {place.offset:,} are not what was written")

    def _segment(self, place: Place) -> _Mapped:
        end = place.offset + place.nbytes
        with self._lock:
            mapped = self._mapped.get(place.name)
            if mapped is None or len(mapped.data) < end:
                mapped = self._mapped[place.name] = self._map(place)
        if len(mapped.data) < end:
            raise self._damaged(place, f"it has {len(mapped.data):,} bytes of {end:,}")
        return mapped

    def _map(self, place: Place) -> _Mapped:
        try:
            with open(os.path.join(self._folder, place.name), "rb") as file:
                status = os.fstat(file.fileno())
                if not status.st_size:
                    return _Mapped(np.empty(0, np.uint8), set())
                mapping = mmap.mmap(
                    file.fileno(), status.st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
                )
        except FileNotFoundError:
            raise self._damaged(place, "it is gone") from None
        except OSError as error:
            raise self._damaged(place, error.strerror or str(error)) from error
        data = np.frombuffer(mapping, np.uint8)
        data.flags.writeable = False
        return _Mapped(data, _compared_in(status))

    def _damaged(self, place: Place, why: str) -> DataLossError:
        return DataLossError(
            f"the segment {os.path.join(self._folder, place.name)} is damaged: {why}",
            hint="look whether the disk is in order",
        )

    def close(self) -> None:
        """Forget the mappings; those that elements are views of stay until these are gone."""
        with self._lock:
            self._mapped.clear()


def segments(folder: str) -> list[str]:
    """The names of all segments in a folder."""
    return [name for name in files.names_in(folder) if name.endswith(_SUFFIX)]


def dead_segments(folder: str) -> list[str]:
    """Those of processes that are gone, and write no more."""
    return [name for name in segments(folder) if is_gone(name.removesuffix(_SUFFIX).rpartition("-")[0])]


def remove_segments(folder: str, names: Iterable[str]) -> int:
    """Remove segments; the number of those that were there."""
    return sum(files.remove(os.path.join(folder, name), _REMOVE) for name in sorted(names))
