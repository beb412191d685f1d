"""One recording in a directory, for any number of processes at once, on one host or several.

    log/00000000                  the slots
    seg/<writer>-<random>.seg     the frames
    beat/<epoch>                  the holder's heartbeat
    beat/asked                    the element that a reader of another process waits for
    manifest                      all records in one file, once the recording has ended

Slots are created complete and exclusively (`storage/files`). When a recording ends, its records are merged into the
manifest and the slot files are removed. A writer that was suspended meanwhile could then create one of these slots
again. So after creating a slot a writer checks for a manifest; if the manifest covers the slot, the claim has failed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from dsnb.cache.recordings.backends import StoreFailed
from dsnb.cache.recordings.recording import Chunk, FrameRef, SplitChunk, decode_record
from dsnb.cache.recordings.segments import (
    ATTRIBUTE_CACHE_S,
    SegmentReader,
    SegmentWriter,
    orphan_segments,
    remove_segments,
    segment_names,
)
from dsnb.elements.frame import Frame
from dsnb.errors import DsnbError
from dsnb.storage import files
from dsnb.storage.failpoints import Failpoint

_SLOT_NAME: Final = "{:08d}"
_RECORD_SEPARATOR: Final = b"\n"
"""Separates two records in a manifest; each record also ends in a line feed."""

_REQUEST_FILE: Final = "asked"

_SLOT_WRITE = files.WriteFailpoints("slot")
_MANIFEST_WRITE = files.WriteFailpoints("manifest")
_SLOT_REMOVE = Failpoint("slot remove")
_HEARTBEAT_REMOVE = Failpoint("beat remove")
_HEARTBEAT_RENAME = Failpoint("beat rename")
_FOLDER_MAKE = Failpoint("recording folder")


class DirectoryStore:
    """One recording in a directory.

    Args:
        folder: The recording's folder, which need not exist yet.
        local: Whether the file system is local to this host.
        make_room: Called with the number of bytes that are about to be written.
    """

    shared = True
    remote = False

    def __init__(
        self,
        folder: str,
        *,
        local: bool,
        make_room: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.location = folder
        self.max_poll_s = 0.05 if local else 1.0
        self._manifest: list[bytes] | None = None
        self._heartbeats = 0
        self._writer = SegmentWriter(self._path("seg"), append_chunks=local, make_room=make_room)
        self._reader = SegmentReader(self._path("seg"), 0.0 if local else ATTRIBUTE_CACHE_S)

    def _path(self, *parts: str) -> str:
        return os.path.join(self.location, *parts)

    def _slot_path(self, slot: int) -> str:
        return self._path("log", _SLOT_NAME.format(slot))

    # ---- the log

    def read(self, slot: int) -> bytes | None:
        # Slot first, manifest second: `finalize` writes the manifest before it removes slots, so one has the record.
        if self._manifest is None or slot >= len(self._manifest):
            found = self._read_file(self._slot_path(slot))
            if found is not None:
                return found
            self._load_manifest()
        return self._manifest[slot] if self._manifest is not None and slot < len(self._manifest) else None

    def _read_file(self, path: str) -> bytes | None:
        try:
            return files.read(path)
        except OSError as error:
            raise StoreFailed(files.translate_os_error(error, f"reading {path}")) from error

    def _load_manifest(self) -> None:
        if self._manifest is None:
            data = self._read_file(self._path("manifest"))
            if data is not None:
                self._manifest = [record + _RECORD_SEPARATOR for record in data.split(_RECORD_SEPARATOR * 2)[:-1]]

    def claim(self, slot: int, record: bytes) -> bool:
        with self._translate_errors():
            if not slot:
                self._make_folders()
            if not files.create(self._slot_path(slot), record, _SLOT_WRITE):
                return False
            return not self._withdraw_if_finalized(slot)

    def _withdraw_if_finalized(self, slot: int) -> bool:
        # See the module's docstring: the slot file of an ended recording was removed, so creating it again succeeded.
        self._load_manifest()
        late = self._manifest is not None and slot < len(self._manifest)
        if late:
            files.remove(self._slot_path(slot), _SLOT_REMOVE)
        return late

    def _make_folders(self) -> None:
        for name in ("log", "seg", "beat"):
            files.make_folder(self._path(name), _FOLDER_MAKE)

    def finalize(self, records: Sequence[bytes]) -> None:
        """Merge the records into the manifest and remove all files that no record names."""
        with self._translate_errors():
            self._load_manifest()
            if self._manifest is None:
                files.replace(self._path("manifest"), _RECORD_SEPARATOR.join([*records, b""]), _MANIFEST_WRITE)
                self._manifest = list(records)
            self._remove_all("log", len(self._manifest))
            self._remove_all("beat")
            self._writer.close()
            remove_segments(self._path("seg"), set(segment_names(self._path("seg"))) - _segment_names(records))
            self._remove_stale_temporary_files()

    def _remove_all(self, name: str, below: int | None = None) -> None:
        for found in files.names_in(self._path(name)):
            if found == _REQUEST_FILE or (found.isdigit() and (below is None or int(found) < below)):
                files.remove(self._path(name, found), _SLOT_REMOVE if name == "log" else _HEARTBEAT_REMOVE)

    def orphans(self) -> Sequence[str]:
        with self._translate_errors():
            return orphan_segments(self._path("seg"))

    def remove_orphans(self, records: Sequence[bytes], orphans: Sequence[str]) -> None:
        with self._translate_errors():
            remove_segments(self._path("seg"), set(orphans) - _segment_names(records))
            self._remove_stale_temporary_files()

    def _remove_stale_temporary_files(self) -> None:
        for folder in (self.location, self._path("log"), self._path("beat")):
            files.remove_stale_temporary_files(folder, _SLOT_REMOVE)

    # ---- the frames

    def write_frames(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        with self._translate_errors():
            return self._writer.write(frames)

    def read_frame(self, ref: FrameRef) -> Frame:
        return self._reader.read_frame(ref)

    def verify(self, ref: FrameRef) -> None:
        self._reader.verify(ref)

    # ---- the heartbeat

    def write_heartbeat(self, epoch: int) -> None:
        # Neither synced nor checked: after a crash of the host there is no holder whose heartbeat could be missed.
        self._heartbeats += 1
        with contextlib.suppress(OSError):
            files.replace_without_sync(self._path("beat", str(epoch)), b"%d" % self._heartbeats, _HEARTBEAT_RENAME)

    def read_heartbeat(self, epoch: int) -> object:
        try:
            return files.read(self._path("beat", str(epoch)))
        except OSError:
            return None

    def request_element(self, position: int) -> None:
        with contextlib.suppress(OSError):
            if self.requested_element() < position:
                files.replace_without_sync(self._path("beat", _REQUEST_FILE), b"%d" % position, _HEARTBEAT_RENAME)

    def requested_element(self) -> int:
        try:
            data = files.read(self._path("beat", _REQUEST_FILE)) or b""
        except OSError:
            return -1
        return int(data) if data.isdigit() else -1

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, DsnbError):
                raise
            raise StoreFailed(files.translate_os_error(error, f"recording to {self.location}")) from error


def _segment_names(records: Sequence[bytes]) -> set[str]:
    found = map(decode_record, records)
    return {ref.name for record in found if isinstance(record, Chunk | SplitChunk) for ref in record.frames}
