"""Recordings in any store that fsspec supports: read by many runs, and preferably written by one at a time.

    <root>/<key>/<number>/log/00000000     the slots
    <root>/<key>/<number>/data/<random>    the frames of one chunk
    <root>/<key>/<number>/beat/<epoch>     the holder's heartbeat
    <root>/<key>/<number>/beat/asked       the element that a reader of another process waits for
    <root>/<key>/<number>/manifest         all records in one file, once the recording has ended
    <root>/<key>/about.json                the pipeline

A slot is created with the store's own "create if absent". In a store that does not implement it reliably, two writers
may both believe that a slot is theirs. The elements are the same, and readers use the record that the log holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import fsspec
import numpy as np

from dsnb.cache.recordings.backends import StoreFailed, limit_exceeded
from dsnb.cache.recordings.frames import decode_frame, digest_of, encode_frame
from dsnb.cache.recordings.metadata import RecordingMetadata, first_difference, parse_metadata
from dsnb.cache.recordings.recording import Chunk, FrameRef, SplitChunk, decode_record, frame_bytes, is_complete
from dsnb.cache.recordings.removal import is_key
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError, DsnbError, UnavailableError
from dsnb.storage import files
from dsnb.storage.urls import without_password

T = TypeVar("T")

_RECORD_SEPARATOR: Final = b"\n"
_REQUEST_FILE: Final = "asked"
_PARTIAL_RECORD_S: Final = 1.0
"""How long a record may stay incomplete; after that it counts as damaged."""
_FILE: Final = re.compile(r"about\.json|\d{6,}/(manifest|log/\d{8,}|data/[0-9a-f]{24}|beat/(\d+|asked))")
"""The names of a pipeline's files, relative to its folder."""


class RemoteFolder:
    """One folder of a remote store.

    Args:
        system: An fsspec file system.
        path: The folder there.
    """

    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self.path = path.rstrip("/")

    def subfolder(self, name: str) -> RemoteFolder:
        """A subfolder of this folder."""
        return RemoteFolder(self._system, f"{self.path}/{name}")

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """A file's content, or the part from `start` up to `end`; None if the file does not exist."""
        try:
            return self._call(lambda: bytes(self._system.cat_file(f"{self.path}/{name}", start=start, end=end)))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file; an existing one is replaced."""
        self._create_parent_and_retry(lambda: self._call(lambda: self._system.pipe_file(f"{self.path}/{name}", data)))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; returns whether it was written."""
        try:
            self._create_parent_and_retry(
                lambda: self._call(lambda: self._system.pipe_file(f"{self.path}/{name}", data, mode="create"))
            )
        except FileExistsError:
            return False
        return True

    def _create_parent_and_retry(self, act: Callable[[], None]) -> None:
        try:
            act()
        except FileNotFoundError:
            self._call(lambda: self._system.makedirs(self.path, exist_ok=True))
            act()

    def names(self) -> list[str]:
        """The names in this folder, read from the store and not from a cache; empty if there is no such folder."""
        try:
            found = self._call(lambda: self._system.ls(self.path, detail=False, refresh=True))
        except FileNotFoundError:
            return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        try:
            self._call(lambda: self._system.rm_file(f"{self.path}/{name}"))
        except FileNotFoundError:
            return

    def files(self) -> list[str]:
        """The names of all files in this folder and below, relative to it."""
        try:
            found = self._call(lambda: self._system.find(self.path))
        except FileNotFoundError:
            return []
        return sorted(name.partition(f"{self.path.strip('/')}/")[2] for name in found)

    def remove_if_empty(self) -> None:
        """Remove this folder, if the store has folders and this one is empty."""
        with contextlib.suppress(Exception):  # a store may raise any error to refuse
            self._system.rmdir(self.path)

    def _call(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise StoreFailed(files.translate_os_error(error, f"recording to {self.path}")) from error
        except Exception as error:  # stores raise any error of their libraries
            raise StoreFailed(
                UnavailableError(f"recording to {self.path} failed: {type(error).__name__}: {error}")
            ) from error


class RemoteStore:
    """One recording in a remote store.

    Args:
        folder: The recording's folder.
        limit: The largest size of one recording in bytes; None for no limit.
    """

    shared = True
    remote = True
    max_poll_s = 1.0

    def __init__(self, folder: RemoteFolder, limit: int | None) -> None:
        self.location = folder.path
        self._folder = folder
        self._log_folder, self._data_folder, self._heartbeat_folder = (
            folder.subfolder(name) for name in ("log", "data", "beat")
        )
        self._limit = limit
        self._nbytes = 0
        self._heartbeats = 0
        self._manifest: list[bytes] | None = None

    def read(self, slot: int) -> bytes | None:
        if self._manifest is None:
            data = self._folder.read("manifest") if not slot else None
            self._manifest = (
                [] if data is None else [part + _RECORD_SEPARATOR for part in data.split(_RECORD_SEPARATOR * 2)[:-1]]
            )
        found = self._manifest[slot] if slot < len(self._manifest) else self._read_record(f"{slot:08d}")
        if found is not None:
            self._nbytes += frame_bytes(found)
        return found

    def _read_record(self, name: str) -> bytes | None:
        """A record of the log. A store that writes in place, such as a local folder, may show a part of it first."""
        found = self._log_folder.read(name)
        until = time.monotonic() + _PARTIAL_RECORD_S
        while found is not None and not is_complete(found) and time.monotonic() < until:
            time.sleep(_PARTIAL_RECORD_S / 100)
            found = self._log_folder.read(name)
        return found

    def claim(self, slot: int, record: bytes) -> bool:
        made = self._log_folder.create(f"{slot:08d}", record)
        if made:
            self._nbytes += frame_bytes(record)
        return made

    def write_frames(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        name = secrets.token_hex(12)
        parts: list[Any] = []
        refs = []
        offset = 0
        for frame in frames:
            buffers, nbytes, digest = encode_frame(frame)
            parts += buffers
            refs.append(FrameRef(name=name, offset=offset, nbytes=nbytes, count=frame.count, digest=digest))
            offset += nbytes
        if self._limit is not None and self._nbytes + offset > self._limit:
            raise limit_exceeded(self.location, self._limit)
        self._data_folder.write(name, b"".join(parts))
        return tuple(refs)

    def read_frame(self, ref: FrameRef) -> Frame:
        return decode_frame(self._fetch(ref))

    def verify(self, ref: FrameRef) -> None:
        self._fetch(ref)

    def _fetch(self, ref: FrameRef) -> np.ndarray[Any, Any]:
        data = self._data_folder.read(ref.name, ref.offset, ref.offset + ref.nbytes)
        path = f"{self._data_folder.path}/{ref.name}"
        if data is None:
            raise DataLossError(f"{path} is gone")
        array = np.frombuffer(data, np.uint8)
        if len(array) != ref.nbytes or digest_of(array) != ref.digest:
            raise DataLossError(f"{path} is damaged: {ref.nbytes:,} bytes from {ref.offset:,} are not as written")
        return array

    def orphans(self) -> Sequence[str]:
        """Nothing: data of dead writers cannot be told from data of living ones; `finalize` removes the rest."""
        return ()

    def remove_orphans(self, records: Sequence[bytes], orphans: Sequence[str]) -> None:
        """Nothing, because `orphans` never returns any."""

    def finalize(self, records: Sequence[bytes]) -> None:
        if self._manifest:
            return
        self._folder.write("manifest", _RECORD_SEPARATOR.join([*records, b""]))
        chunks = [record for record in map(decode_record, records) if isinstance(record, Chunk | SplitChunk)]
        named = {ref.name for chunk in chunks for ref in chunk.frames}
        for name in self._data_folder.names():
            if name not in named and re.fullmatch("[0-9a-f]{24}", name):
                self._data_folder.remove(name)
        for name in self._heartbeat_folder.names():
            if name.isdigit() or name == _REQUEST_FILE:
                self._heartbeat_folder.remove(name)

    def write_heartbeat(self, epoch: int) -> None:
        self._heartbeats += 1
        try:
            self._heartbeat_folder.write(str(epoch), b"%d" % self._heartbeats)
        except StoreFailed:
            return  # the next write reports it

    def read_heartbeat(self, epoch: int) -> object:
        return self._heartbeat_folder.read(str(epoch))

    def request_element(self, position: int) -> None:
        try:
            if self.requested_element() < position:
                self._heartbeat_folder.write(_REQUEST_FILE, b"%d" % position)
        except StoreFailed:
            return  # the writer commits at its own pace

    def requested_element(self) -> int:
        data = self._heartbeat_folder.read(_REQUEST_FILE) or b""
        return int(data) if data.isdigit() else -1

    def close(self) -> None:
        """Nothing: no connection is kept open."""


class RemoteRecordings:
    """The recordings of one pipeline in a remote store.

    Args:
        url: The root, as fsspec accepts it.
        key: The digest of everything that the recording depends on.
        metadata: The pipeline, described for explanations.
        limit: The largest size of one recording in bytes; None for no limit.
    """

    def __init__(self, url: str, key: str, metadata: RecordingMetadata, *, limit: int | None = None) -> None:
        self.key = (url, key)
        self._metadata = metadata
        self._limit = limit

    @cached_property
    def _root(self) -> RemoteFolder:
        try:
            return RemoteFolder(*fsspec.core.url_to_fs(self.key[0], use_listings_cache=False))
        except Exception as error:  # stores raise any error of their libraries
            raise StoreFailed(
                UnavailableError(
                    f"the place {without_password(self.key[0])} cannot be reached: {error}",
                    hint="look at the address, and what fsspec needs for it",
                )
            ) from error

    @property
    def _folder(self) -> RemoteFolder:
        return self._root.subfolder(self.key[1])

    def newest_number(self) -> int:
        return max((int(name) for name in self._folder.names() if name.isdigit()), default=0)

    def open(self, number: int) -> RemoteStore:
        return RemoteStore(self._folder.subfolder(f"{number:06d}"), self._limit)

    def explain_miss(self) -> str:
        try:
            others = [name for name in self._root.names() if name != os.path.basename(self._folder.path)]
            found = [self._root.subfolder(name).read("about.json") for name in others]
            self._folder.write("about.json", self._metadata.to_json())
        except (StoreFailed, DsnbError):
            return ""
        return first_difference(self.key[0], self._metadata, filter(None, map(parse_metadata, filter(None, found))))

    def keys(self) -> list[str]:
        """The keys of all pipelines with a recording under the same root."""
        names = filter(is_key, self._root.names())
        return [name for name in names if any(map(str.isdigit, self._root.subfolder(name).names()))]

    def metadata(self) -> bytes | None:
        """The metadata that were stored for the pipeline, as JSON; None if there are none."""
        return self._folder.read("about.json")

    def clear(self) -> None:
        """Remove the recordings of this pipeline, but no file that dsnb did not write."""
        ours = [name for name in self._folder.files() if _FILE.fullmatch(name)]
        for name in ours:
            self._folder.remove(name)
        for number in sorted({name.partition("/")[0] for name in ours if "/" in name}):
            for part in ("log", "data", "beat"):
                self._folder.subfolder(f"{number}/{part}").remove_if_empty()
            self._folder.subfolder(number).remove_if_empty()
        self._folder.remove_if_empty()

    def foreign_files(self) -> list[str]:
        """The files in the folder of this pipeline that dsnb did not write."""
        return [name for name in self._folder.files() if not _FILE.fullmatch(name)]

    def close(self) -> None:
        """Nothing: no connection is kept open."""
