"""The files that `Dataset.save` writes, and the source that reads them; one split for each file.

A saved dataset is a folder. `dsnb-dataset.json` lists its files in order, with the number of elements in each; it is
written last, so a folder that has it is complete. A file is a sequence of frames (`cache/recordings/frames`), each
behind its length and its xxh3-128 digest.
"""

from __future__ import annotations

import posixpath
import struct
from typing import IO, Any, Final

import msgspec
import numpy as np

from dsnb.cache.recordings.frames import decode_frame, digest_of, elements_for_reader
from dsnb.elements.frame import Frame
from dsnb.elements.spec import compatible, spec_from_json
from dsnb.errors import DataLossError, DsnbError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, open_file
from dsnb.pipeline.sources.record_files import FilesStage
from dsnb.pipeline.splits import FileSource
from dsnb.storage.urls import shown
from dsnb.system_limits import describe_os_error

MANIFEST: Final = "dsnb-dataset.json"
FORMAT: Final = 1
HEAD: Final = struct.Struct("<Q16s")
"""What stands before each frame: its length in bytes, and its digest."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a saved dataset consists of.

    Attributes:
        format: The version of the format.
        element_spec: The element spec as JSON; empty if it is unknown.
        files: The names of the files in the folder, in order.
        counts: How many elements each of them has.
    """

    format: int = FORMAT
    element_spec: str = ""
    files: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


def saved_files(path: str, element_spec: Any) -> SavedFiles:
    """The source that reads a saved dataset.

    Raises:
        NotFoundError: there is no saved dataset.
        FailedPreconditionError: another version of dsnb saved it, or it cannot be read.
        InvalidArgumentError: its elements are not those of `element_spec`.
    """
    manifest = _read_manifest(path)
    spec = spec_from_json(manifest.element_spec)
    if element_spec is not None and spec is not None and not compatible(element_spec, spec):
        raise InvalidArgumentError(
            f"the dataset in {shown(path)} has elements {spec}, and `element_spec` is {element_spec}",
            hint="leave element_spec out",
        )
    files = tuple(posixpath.join(path, name) for name in manifest.files)
    counts = dict(zip(files, manifest.counts, strict=True))
    return SavedFiles(files=files, counts=counts, spec=element_spec if spec is None else spec)


def _read_manifest(path: str) -> Manifest:
    try:
        with open_file(posixpath.join(path, MANIFEST), "", BUFFER_BYTES, None) as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"there is no saved dataset at {shown(path)}",
            did="nothing was read",
            hint="Dataset.save(path) writes one; a folder without dsnb-dataset.json is not complete",
        ) from error
    except OSError as error:
        if isinstance(error, DsnbError):
            raise
        raise FailedPreconditionError(
            f"`path`: {shown(path)} cannot be read ({describe_os_error(error)})",
            did="nothing was read",
            hint="name the folder of a saved dataset that you may read",
        ) from error
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise FailedPreconditionError(
            f"{shown(path)}/{MANIFEST} is no description of a dataset ({error})",
            did="nothing was read",
            hint="save the dataset again, in another folder",
        ) from error
    if found.format != FORMAT:
        raise FailedPreconditionError(
            f"the dataset in {shown(path)} was saved in format {found.format}, and this version of dsnb reads {FORMAT}",
            did="nothing was read",
            hint="read it with the version of dsnb that saved it, and save it again",
        )
    return found


class SavedFiles(FileSource, frozen=True, kw_only=True):
    """The elements of one file after another.

    Attributes:
        counts: How many elements each file of the dataset has.
        spec: The element spec.
    """

    counts: dict[str, int]
    spec: Any = None

    @property
    def name(self) -> str:
        return f"saved({len(self.files)})"

    @property
    def element_spec(self) -> Any:
        return self.spec

    @property
    def cardinality(self) -> int:
        return sum(self.counts[file] for file in self.files)

    def build(self, context: BuildContext) -> Stage:
        return SavedFilesStage(
            self, context, lambda path: SavedReader(open_file(path, "", BUFFER_BYTES, context.opened_files), path)
        )


class SavedReader:
    """Reads the frames of one file.

    Args:
        file: The file, at its start; `close` closes it.
        path: Its name, for errors.
    """

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self._path = path

    def next_frame(self) -> Frame | None:
        """Return the next frame; None at the end.

        Raises:
            DataLossError: the file is damaged or cut off.
            UnavailableError: the rest cannot be read from its store.
        """
        head = self._file.read(HEAD.size)
        if not head:
            return None
        if len(head) < HEAD.size:
            raise self._damaged("ends in the middle of a frame")
        length, digest = HEAD.unpack(head)
        data = np.frombuffer(self._file.read(length), np.uint8)
        if len(data) < length:
            raise self._damaged("ends in the middle of a frame")
        if bytes.fromhex(digest_of(data)) != digest:
            raise self._damaged("is damaged")
        return decode_frame(data)

    def _damaged(self, what: str) -> DataLossError:
        return DataLossError(
            f"the file {shown(self._path)} of a saved dataset {what}",
            did="the rest of the file was left out; reading continues with the next file",
            hint="copy it again from where it is whole, or save the dataset again",
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SavedFilesStage(FilesStage[SavedReader]):
    """Returns elements, which are exclusive to this reader."""

    _frame: Frame | None = None
    """The frame whose elements come next."""
    _offset = 0

    def read(self, want: int) -> Run:
        frame = self._frame or self._next_frame()
        if frame is None:
            return []
        end = min(self._offset + want, frame.count)
        run = elements_for_reader(frame, self._offset, end)
        self._offset = end
        self._given += len(run)
        if end == frame.count:
            self._frame = None
        return run

    def _next_frame(self) -> Frame | None:
        while (reader := self._reader or self._open_next()) is not None:
            try:
                frame = reader.next_frame()
            except Exception:
                self._close_file()
                raise
            if frame is not None:
                self._frame, self._offset = frame, 0
                return frame
            self._close_file()
        return None

    def read_past(self, reader: SavedReader, count: int) -> None:
        while count > 0 and (frame := reader.next_frame()) is not None:
            count -= frame.count
