"""Recordings in whatever fsspec knows: read by many, and best written by one run at a time.

    <root>/<key>/<number>/log/00000000     the slots
    <root>/<key>/<number>/data/<random>    the frames of one chunk
    <root>/<key>/<number>/beat/<epoch>     the holder's pulse
    <root>/<key>/<number>/beat/asked       the element that a reader of another process waits for
    <root>/<key>/<number>/manifest         all records in one file, once the recording has ended
    <root>/<key>/about.json                the pipeline

A slot is created with the store's own "only if there is none". Where a store does not keep that promise, two writers at
once may each believe that a slot is theirs; the elements are the same, and readers take what they find in the log.
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

from dsnb.cache import files
from dsnb.cache.about import About, from_json, news
from dsnb.cache.backends import Unwritable, over_limit
from dsnb.cache.frames import decode as decode_frame
from dsnb.cache.frames import digest_of, encode
from dsnb.cache.places import without_password
from dsnb.cache.recording import Chunk, Piece, Place, decode, is_whole
from dsnb.cache.removal import is_key
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError, DsnbError, UnavailableError

T = TypeVar("T")

_BETWEEN: Final = b"\n"
_ASKED: Final = "asked"
_PART_S: Final = 1.0
"""How long a record may be visible in part; then it is damaged."""
_FILE: Final = re.compile(r"about\.json|\d{6,}/(manifest|log/\d{8,}|data/[0-9a-f]{24}|beat/(\d+|asked))")
"""The files of a pipeline's recordings, by their names in its folder."""


class Folder:
    """One folder of a remote store.

    Args:
        system: An fsspec file system.
        path: The folder there.
    """

    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self.path = path.rstrip("/")

    def below(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(self._system, f"{self.path}/{name}")

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """A file's content or a part of it; None if it is not there."""
        try:
            return self._do(lambda: bytes(self._system.cat_file(f"{self.path}/{name}", start=start, end=end)))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whether there is one or not."""
        self._made(lambda: self._do(lambda: self._system.pipe_file(f"{self.path}/{name}", data)))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of that name."""
        try:
            self._made(lambda: self._do(lambda: self._system.pipe_file(f"{self.path}/{name}", data, mode="create")))
        except FileExistsError:
            return False
        return True

    def _made(self, act: Callable[[], None]) -> None:
        try:
            act()
        except FileNotFoundError:
            self._do(lambda: self._system.makedirs(self.path, exist_ok=True))
            act()

    def names(self) -> list[str]:
        """The names in this folder, as the store has them now."""
        try:
            found = self._do(lambda: self._system.ls(self.path, detail=False, refresh=True))
        except FileNotFoundError:
            return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def remove(self, name: str) -> None:
        """Remove a file."""
        try:
            self._do(lambda: self._system.rm_file(f"{self.path}/{name}"))
        except FileNotFoundError:
            return

    def files(self) -> list[str]:
        """The names of all files below this folder, relative to it."""
        try:
            found = self._do(lambda: self._system.find(self.path))
        except FileNotFoundError:
            return []
        return sorted(name.partition(f"{self.path.strip('/')}/")[2] for name in found)

    def remove_if_empty(self) -> None:
        """Remove this folder, in a store that has folders and if nothing is in it."""
        with contextlib.suppress(Exception):  # a store may refuse it with any error
            self._system.rmdir(self.path)

    def _do(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise Unwritable(files.page(error, f"recording to {self.path}")) from error
        except Exception as error:  # stores raise whatever their libraries do
            raise Unwritable(
                UnavailableError(f"recording to {self.path} failed: {type(error).__name__}: {error}")
            ) from error


class RemoteStore:
    """One recording.

    Args:
        folder: Where.
        limit: Most bytes of one recording; None for no limit.
    """

    shared = True
    remote = True
    poll = 1.0

    def __init__(self, folder: Folder, limit: int | None) -> None:
        self.place = folder.path
        self._folder = folder
        self._log, self._data, self._beat = (folder.below(name) for name in ("log", "data", "beat"))
        self._limit = limit
        self._nbytes = 0
        self._beats = 0
        self._manifest: list[bytes] | None = None

    def read(self, slot: int) -> bytes | None:
        if self._manifest is None:
            data = self._folder.read("manifest") if not slot else None
            self._manifest = [] if data is None else [part + _BETWEEN for part in data.split(_BETWEEN * 2)[:-1]]
        found = self._manifest[slot] if slot < len(self._manifest) else self._record(f"{slot:08d}")
        if found is not None:
            self._count(found)
        return found

    def _record(self, name: str) -> bytes | None:
        """A record of the log. A store that writes in place, as a folder does, may show the beginning of it first."""
        found = self._log.read(name)
        until = time.monotonic() + _PART_S
        while found is not None and not is_whole(found) and time.monotonic() < until:
            time.sleep(_PART_S / 100)
            found = self._log.read(name)
        return found

    def claim(self, slot: int, record: bytes) -> bool:
        made = self._log.create(f"{slot:08d}", record)
        if made:
            self._count(record)
        return made

    def _count(self, data: bytes) -> None:
        record = decode(data)
        if isinstance(record, Chunk | Piece):
            self._nbytes += sum(place.nbytes for place in record.frames)

    def put(self, frames: Sequence[Frame]) -> tuple[Place, ...]:
        name = secrets.token_hex(12)
        parts: list[Any] = []
        places = []
        offset = 0
        for frame in frames:
            buffers, nbytes, digest = encode(frame)
            parts += buffers
            places.append(Place(name=name, offset=offset, nbytes=nbytes, count=frame.count, digest=digest))
            offset += nbytes
        if self._limit is not None and self._nbytes + offset > self._limit:
            raise over_limit(self.place, self._limit)
        self._data.write(name, b"".join(parts))
        return tuple(places)

    def frame(self, place: Place) -> Frame:
        return decode_frame(self._fetch(place))

    def verify(self, place: Place) -> None:
        self._fetch(place)

    def _fetch(self, place: Place) -> np.ndarray[Any, Any]:
        data = self._data.read(place.name, place.offset, place.offset + place.nbytes)
        path = f"{self._data.path}/{place.name}"
        if data is None:
            raise DataLossError(f"{path} is gone")
        array = np.frombuffer(data, np.uint8)
        if len(array) != place.nbytes or digest_of(array) != place.digest:
            raise DataLossError(f"{path} is damaged: {place.nbytes:,} bytes from {place.offset:,} are not as written")
        return array

    def left_behind(self) -> Sequence[str]:
        """What others may still be writing cannot be told from what dead ones left; the end will tell."""
        return ()

    def tidy(self, records: Sequence[bytes], left: Sequence[str]) -> None:
        """Nothing: see `left_behind`."""

    def settle(self, records: Sequence[bytes]) -> None:
        if self._manifest:
            return
        self._folder.write("manifest", _BETWEEN.join([*records, b""]))
        chunks = [record for record in map(decode, records) if isinstance(record, Chunk | Piece)]
        named = {place.name for chunk in chunks for place in chunk.frames}
        for name in self._data.names():
            if name not in named and re.fullmatch("[0-9a-f]{24}", name):
                self._data.remove(name)
        for name in self._beat.names():
            if name.isdigit() or name == _ASKED:
                self._beat.remove(name)

    def beat(self, epoch: int) -> None:
        self._beats += 1
        try:
            self._beat.write(str(epoch), b"%d" % self._beats)
        except Unwritable:
            return  # whoever writes next finds out

    def pulse(self, epoch: int) -> object:
        return self._beat.read(str(epoch))

    def ask(self, position: int) -> None:
        try:
            if self.asked() < position:
                self._beat.write(_ASKED, b"%d" % position)
        except Unwritable:
            return  # the writer commits at its own pace

    def asked(self) -> int:
        data = self._beat.read(_ASKED) or b""
        return int(data) if data.isdigit() else -1

    def close(self) -> None:
        """Nothing stays open."""


class RemoteShelf:
    """The recordings of one pipeline.

    Args:
        url: The root, as fsspec takes it.
        key: The digest of all that the recording depends on.
        about: What that is.
        limit: Most bytes of one recording; None for no limit.
    """

    def __init__(self, url: str, key: str, about: About, *, limit: int | None = None) -> None:
        self.key = (url, key)
        self._about = about
        self._limit = limit

    @cached_property
    def _root(self) -> Folder:
        try:
            return Folder(*fsspec.core.url_to_fs(self.key[0], use_listings_cache=False))
        except Exception as error:  # stores raise whatever their libraries do
            raise Unwritable(
                UnavailableError(
                    f"the place {without_password(self.key[0])} cannot be reached: {error}",
                    hint="look at the address, and what fsspec needs for it",
                )
            ) from error

    @property
    def _folder(self) -> Folder:
        return self._root.below(self.key[1])

    def newest(self) -> int:
        return max((int(name) for name in self._folder.names() if name.isdigit()), default=0)

    def open(self, number: int) -> RemoteStore:
        return RemoteStore(self._folder.below(f"{number:06d}"), self._limit)

    def explain(self) -> str:
        try:
            others = [name for name in self._root.names() if name != os.path.basename(self._folder.path)]
            found = [self._root.below(name).read("about.json") for name in others]
            self._folder.write("about.json", self._about.to_json())
        except (Unwritable, DsnbError):
            return ""
        return news(self.key[0], self._about, filter(None, map(from_json, filter(None, found))))

    def keys(self) -> list[str]:
        """The keys of all pipelines that are recorded in the same place."""
        names = filter(is_key, self._root.names())
        return [name for name in names if any(map(str.isdigit, self._root.below(name).names()))]

    def about(self) -> bytes | None:
        """What was noted of the pipeline."""
        return self._folder.read("about.json")

    def clear(self) -> None:
        """Remove the recordings of this pipeline, and nothing that dsnb did not write."""
        ours = [name for name in self._folder.files() if _FILE.fullmatch(name)]
        for name in ours:
            self._folder.remove(name)
        for number in sorted({name.partition("/")[0] for name in ours if "/" in name}):
            for part in ("log", "data", "beat"):
                self._folder.below(f"{number}/{part}").remove_if_empty()
            self._folder.below(number).remove_if_empty()
        self._folder.remove_if_empty()

    def foreign(self) -> list[str]:
        """The files among the recordings of this pipeline that dsnb did not write."""
        return [name for name in self._folder.files() if not _FILE.fullmatch(name)]

    def close(self) -> None:
        """Nothing stays open."""
