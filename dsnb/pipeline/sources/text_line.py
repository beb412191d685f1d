"""`TextLineDataset`: the lines of text files; one split for each file."""

from __future__ import annotations

import zlib
from itertools import islice
from typing import IO, Any, cast

from dsnb.elements.spec import STR, TensorSpec
from dsnb.errors import DataLossError, DsnbError
from dsnb.pipeline.engine.calls import UserFunction
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, open_file
from dsnb.pipeline.splits import FileSource, SourceStage
from dsnb.storage.urls import shown


class TextLines(FileSource, frozen=True, kw_only=True):
    """The lines of one file after another. If `compression` is None, each file's suffix decides."""

    compression: str | None = None
    buffer_bytes: int = BUFFER_BYTES

    @property
    def name(self) -> str:
        return f"text_lines({len(self.files)})"

    @property
    def element_spec(self) -> Any:
        return TensorSpec((), STR)

    def build(self, context: BuildContext) -> Stage:
        return TextLinesStage(self, context)


class TextLinesStage(SourceStage):
    """Returns lines, with one file open at a time.

    A file that cannot be opened or read further is one error, and reading continues with the next file. A line that is
    not valid UTF-8 is one error, and reading continues with the next line.
    """

    takes_positions_when_needed = True

    def __init__(self, operation: TextLines, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(operation.files))
        self._operation = operation
        self._opened_files = context.opened_files
        self._decode = UserFunction(_decode_line, operation.name, keep_results=False)
        self._file: IO[bytes] | None = None
        self._undecoded: list[bytes] = []
        self._file_error: Exception | None = None
        self._path = ""

    def produce(self, want: int) -> Run:
        lines = self._undecoded[:want] or self._read(want)
        self._undecoded = self._undecoded[want:]
        out: list[Any] = []
        failure = self._decode.extend(out, lines)
        if failure is None:
            return out
        if not isinstance(failure, Exception):
            self._undecoded = lines + self._undecoded
            raise failure
        self._undecoded = lines[len(out) + 1 :] + self._undecoded
        return self.fail_after(failure, out)

    def _read(self, want: int) -> list[bytes]:
        """Return raw lines; the error of a file is raised after the lines that could be read from it."""
        if self._file_error is not None:
            broken, self._file_error = self._file_error, None
            self._close_file()
            raise broken
        while self._file is not None or self._open_next():
            lines: list[bytes] = []
            try:
                lines.extend(islice(cast("IO[bytes]", self._file), want))
            except (DsnbError, OSError, EOFError, zlib.error) as failure:
                self._file_error = self._as_data_loss(failure)
            if lines:
                return lines
            self._close_file()
            if self._file_error is not None:
                return self._read(want)
        return []

    def _as_data_loss(self, failure: Exception) -> Exception:
        """Return errors of disk and store unchanged, and errors of the decompressor as one that names the file."""
        if isinstance(failure, DsnbError) or getattr(failure, "errno", None) is not None:
            return failure
        return DataLossError(
            f"{shown(self._path)} cannot be unpacked ({failure})",
            did="the rest of the file was left out; reading continues with the next file",
            hint='write it again; `compression_type` is "GZIP", "ZLIB" or "" for a file that is not compressed',
        )

    def _open_next(self) -> bool:
        self.note_splits_finished()
        for position in self._splits.take(1):
            self._path, operation = self._operation.files[position], self._operation
            self._file = open_file(self._path, operation.compression, operation.buffer_bytes, self._opened_files)
            return True
        return False

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def release(self, unread: int) -> None:
        self._close_file()


def _decode_line(raw: bytes) -> str:
    return raw.removesuffix(b"\n").removesuffix(b"\r").decode()
