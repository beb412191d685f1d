"""One recording in a directory, for any number of processes at once, on one host or several.

    log/00000000                  the slots
    seg/<writer>-<random>.seg     the frames
    beat/<epoch>                  the holder's pulse
    beat/asked                    the element that a reader of another process waits for
    manifest                      all records in one file, once the recording has ended

Slots are made whole and exclusively (`cache/files`). When a recording ends its records are folded into the manifest and
the slots go. A writer that slept through that could then claim one of their numbers again: so who has made a slot looks
whether there is a manifest by now, and if that covers the slot, it was too late.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from dsnb.cache import files
from dsnb.cache.backends import Unwritable
from dsnb.cache.faults import Point
from dsnb.cache.recording import Chunk, Piece, Place, decode
from dsnb.cache.segments import PATIENCE_S, SegmentReader, SegmentWriter, dead_segments, remove_segments, segments
from dsnb.elements.frame import Frame
from dsnb.errors import DsnbError

_SLOT: Final = "{:08d}"
_BETWEEN: Final = b"\n"
"""Between two records of a manifest; each record ends in a line feed itself."""

_ASKED: Final = "asked"

_SLOT_STEPS = files.Steps("slot")
_MANIFEST_STEPS = files.Steps("manifest")
_SLOT_REMOVE = Point("slot remove")
_BEAT_REMOVE = Point("beat remove")
_BEAT_RENAME = Point("beat rename")
_FOLDER_MAKE = Point("recording folder")


class DirectoryStore:
    """One recording.

    Args:
        folder: Its folder, which need not be there yet.
        local: Whether the file system is this host's own.
        make_room: Called with the bytes that are about to be written.
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
        self.place = folder
        self.poll = 0.05 if local else 1.0
        self._manifest: list[bytes] | None = None
        self._beats = 0
        self._writer = SegmentWriter(self._path("seg"), growing=local, make_room=make_room)
        self._reader = SegmentReader(self._path("seg"), 0.0 if local else PATIENCE_S)

    def _path(self, *parts: str) -> str:
        return os.path.join(self.place, *parts)

    def _slot(self, slot: int) -> str:
        return self._path("log", _SLOT.format(slot))

    # ---- the log

    def read(self, slot: int) -> bytes | None:
        if self._manifest is None or slot >= len(self._manifest):
            found = self._read(self._slot(slot))
            if found is not None:
                return found
            self._load_manifest()
        return self._manifest[slot] if self._manifest is not None and slot < len(self._manifest) else None

    def _read(self, path: str) -> bytes | None:
        try:
            return files.read(path)
        except OSError as error:
            raise Unwritable(files.page(error, f"reading {path}")) from error

    def _load_manifest(self) -> None:
        if self._manifest is None:
            data = self._read(self._path("manifest"))
            if data is not None:
                self._manifest = [record + _BETWEEN for record in data.split(_BETWEEN * 2)[:-1]]

    def claim(self, slot: int, record: bytes) -> bool:
        with self._writing():
            if not slot:
                self._make_folders()
            if not files.create(self._slot(slot), record, _SLOT_STEPS):
                return False
            return not self._came_too_late(slot)

    def _came_too_late(self, slot: int) -> bool:
        self._load_manifest()
        late = self._manifest is not None and slot < len(self._manifest)
        if late:
            files.remove(self._slot(slot), _SLOT_REMOVE)
        return late

    def _make_folders(self) -> None:
        for name in ("log", "seg", "beat"):
            files.make_folder(self._path(name), _FOLDER_MAKE)

    def settle(self, records: Sequence[bytes]) -> None:
        """Fold the records into the manifest and remove all that is in none of them."""
        with self._writing():
            self._load_manifest()
            if self._manifest is None:
                files.replace(self._path("manifest"), _BETWEEN.join([*records, b""]), _MANIFEST_STEPS)
                self._manifest = list(records)
            self._remove_all("log", len(self._manifest))
            self._remove_all("beat")
            self._writer.close()
            remove_segments(self._path("seg"), set(segments(self._path("seg"))) - _named(records))
            self._sweep_aside()

    def _remove_all(self, name: str, below: int | None = None) -> None:
        for found in files.names_in(self._path(name)):
            if found == _ASKED or (found.isdigit() and (below is None or int(found) < below)):
                files.remove(self._path(name, found), _SLOT_REMOVE if name == "log" else _BEAT_REMOVE)

    def left_behind(self) -> Sequence[str]:
        with self._writing():
            return dead_segments(self._path("seg"))

    def tidy(self, records: Sequence[bytes], left: Sequence[str]) -> None:
        with self._writing():
            remove_segments(self._path("seg"), set(left) - _named(records))
            self._sweep_aside()

    def _sweep_aside(self) -> None:
        for folder in (self.place, self._path("log"), self._path("beat")):
            files.sweep(folder, _SLOT_REMOVE)

    # ---- the frames

    def put(self, frames: Sequence[Frame]) -> tuple[Place, ...]:
        with self._writing():
            return self._writer.write(frames)

    def frame(self, place: Place) -> Frame:
        return self._reader.frame(place)

    def verify(self, place: Place) -> None:
        self._reader.verify(place)

    # ---- the pulse

    def beat(self, epoch: int) -> None:
        # Neither synced nor waited for: after a crash of the host there is no holder whose pulse could be missed.
        self._beats += 1
        with contextlib.suppress(OSError):
            files.replace_loosely(self._path("beat", str(epoch)), b"%d" % self._beats, _BEAT_RENAME)

    def pulse(self, epoch: int) -> object:
        try:
            return files.read(self._path("beat", str(epoch)))
        except OSError:
            return None

    def ask(self, position: int) -> None:
        with contextlib.suppress(OSError):
            if self.asked() < position:
                files.replace_loosely(self._path("beat", _ASKED), b"%d" % position, _BEAT_RENAME)

    def asked(self) -> int:
        try:
            data = files.read(self._path("beat", _ASKED)) or b""
        except OSError:
            return -1
        return int(data) if data.isdigit() else -1

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, DsnbError):
                raise
            raise Unwritable(files.page(error, f"recording to {self.place}")) from error


def _named(records: Sequence[bytes]) -> set[str]:
    found = map(decode, records)
    return {place.name for record in found if isinstance(record, Chunk | Piece) for place in record.frames}
