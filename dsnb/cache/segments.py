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
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dsnb.cache import files
from dsnb.cache.faults import Point
from dsnb.cache.frames import decode, digest_of, encode
from dsnb.cache.process import here, is_gone
from dsnb.cache.recording import Place
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError

SEGMENT_BYTES: Final = 512 << 20
_ALIGN: Final = 4096
_SUFFIX: Final = ".seg"
_LOOK_AGAIN_S: Final = 0.25
PATIENCE_S: Final = 60.0
"""How long network file systems may take to show what another host has written: their attribute caches' time."""

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
    """

    def __init__(self, folder: str, growing: bool) -> None:
        self._folder = folder
        self._growing = growing
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
        descriptor = self._open()
        places = []
        with _WRITE:
            for frame in frames:
                buffers, nbytes, digest = encode(frame)
                files.write_all(descriptor, [*buffers, bytes(-nbytes % _ALIGN)])
                places.append(Place(name=self._name, offset=self._end, nbytes=nbytes, count=frame.count, digest=digest))
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


class SegmentReader:
    """Reads frames as views of mapped segments; each is compared with its digest before it is first handed out.

    Args:
        folder: Where the segments lie.
        patience: For how many seconds a file is opened again when it seems damaged: on a network file system it may
            only be that this host does not see yet what another one has written.
    """

    def __init__(self, folder: str, patience: float = 0.0) -> None:
        self._folder = folder
        self._patience = patience
        self._lock = threading.Lock()
        self._mapped: dict[str, np.ndarray[Any, Any]] = {}
        self._verified: set[tuple[str, int]] = set()

    def frame(self, place: Place) -> Frame:
        """A frame.

        Raises:
            DataLossError: naming the file: it is gone, too short, or holds something else.
        """
        if (place.name, place.offset) not in self._verified:
            self._wait_for(place)
            self._verified.add((place.name, place.offset))
        return decode(self._bytes(place))

    def _wait_for(self, place: Place) -> None:
        """Compare a frame with its digest, again and again while it may only be late."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._compare(self._bytes(place), place)
                return
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
        self._compare(self._bytes(place), place)

    def _compare(self, data: np.ndarray[Any, Any], place: Place) -> None:
        if digest_of(data) != place.digest:
            raise self._damaged(place, f"{place.nbytes:,} bytes from {place.offset:,} are not what was written")

    def _bytes(self, place: Place) -> np.ndarray[Any, Any]:
        end = place.offset + place.nbytes
        with self._lock:
            mapped = self._mapped.get(place.name)
            if mapped is None or len(mapped) < end:
                mapped = self._mapped[place.name] = self._map(place)
        if len(mapped) < end:
            raise self._damaged(place, f"it has {len(mapped):,} bytes of {end:,}")
        return mapped[place.offset : end]

    def _map(self, place: Place) -> np.ndarray[Any, Any]:
        try:
            with open(os.path.join(self._folder, place.name), "rb") as file:
                length = os.fstat(file.fileno()).st_size
                if not length:
                    return np.empty(0, np.uint8)
                mapping = mmap.mmap(
                    file.fileno(), length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
                )
        except FileNotFoundError:
            raise self._damaged(place, "it is gone") from None
        except OSError as error:
            raise self._damaged(place, error.strerror or str(error)) from error
        data = np.frombuffer(mapping, np.uint8)
        data.flags.writeable = False
        return data

    def _damaged(self, place: Place, why: str) -> DataLossError:
        return DataLossError(
            f"the segment {os.path.join(self._folder, place.name)} is damaged: {why}",
            hint="look whether the disk is in order",
        )

    def close(self) -> None:
        """Forget the mappings; those that elements are views of stay until these are gone."""
        with self._lock:
            self._mapped.clear()
            self._verified.clear()


def sweep_segments(folder: str, named: set[str], *, complete: bool) -> int:
    """Remove segments that no record names.

    Args:
        folder: Where they lie.
        named: Those that stay.
        complete: Whether the recording has ended: then nobody's data can come into it any more. Else only those of
            processes that are gone are removed.

    Returns:
        The number of files that were removed.
    """
    swept = 0
    for name in files.names_in(folder):
        if name.endswith(_SUFFIX) and name not in named:
            gone = complete or is_gone(name.removesuffix(_SUFFIX).rpartition("-")[0])
            swept += bool(gone) and files.remove(os.path.join(folder, name), _REMOVE)
    return swept
