"""`TextLineDataset`: the lines of text files; one split for each file."""

from __future__ import annotations

import zlib
from itertools import islice
from typing import IO, Any, Final

from dsnb.elements.spec import STR, TensorSpec
from dsnb.errors import DataLossError, DsnbError
from dsnb.pipeline.engine.calls import UserFunction
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, open_file
from dsnb.pipeline.sources.record_files import FilesStage
from dsnb.pipeline.splits import FileSource
from dsnb.storage.urls import shown

_READ_ERRORS: Final = (DsnbError, OSError, EOFError, zlib.error)


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


class TextLinesStage(FilesStage[IO[bytes]]):
    """Returns lines.

    A file that cannot be read further is one error, and reading continues with the next file. A line that is not valid
    UTF-8 is one error, and reading continues with the next line.
    """

    def __init__(self, operation: TextLines, context: BuildContext) -> None:
        def open_lines(path: str) -> IO[bytes]:
            return open_file(path, operation.compression, operation.buffer_bytes, context.opened_files)

        super().__init__(operation, context, open_lines)
        self._decode = UserFunction(_decode_line, operation.name, keep_results=False)
        self._undecoded: list[bytes] = []
        self._file_error: Exception | None = None

    def read(self, want: int) -> Run:
        if not self._undecoded:
            self._read_lines(want)
        lines = self._undecoded[:want]
        out: list[Any] = []
        failure = self._decode.extend(out, lines)
        if failure is None:
            self._undecoded = self._undecoded[want:]
            return out
        if not isinstance(failure, Exception):
            raise failure
        self._undecoded = self._undecoded[len(out) + 1 :]
        return self.fail_after(failure, out)

    def _read_lines(self, want: int) -> None:
        """Read raw lines; the error of a file is raised after the lines that could be read from it."""
        while not self._undecoded:
            if self._file_error is not None:
                broken, self._file_error = self._file_error, None
                self._close_file()
                raise broken
            file = self._reader or self._open_next()
            if file is None:
                return
            lines: list[bytes] = []
            try:
                lines.extend(islice(file, want))
            except _READ_ERRORS as failure:
                self._file_error = self._as_data_loss(failure)
            if lines:
                self._undecoded, self._given = lines, self._given + len(lines)
            elif self._file_error is None:
                self._close_file()

    def read_past(self, reader: IO[bytes], count: int) -> None:
        try:
            for _ in islice(reader, count):
                pass
        except _READ_ERRORS as failure:
            raise self._as_data_loss(failure) from None

    def _as_data_loss(self, failure: Exception) -> Exception:
        """Return errors of disk and store unchanged, and errors of the decompressor as one that names the file."""
        if isinstance(failure, DsnbError) or getattr(failure, "errno", None) is not None:
            return failure
        return DataLossError(
            f"{shown(self._path)} cannot be unpacked ({failure})",
            did="the rest of the file was left out; reading continues with the next file",
            hint='write it again; `compression_type` is "GZIP", "ZLIB" or "" for a file that is not compressed',
        )


def _decode_line(raw: bytes) -> str:
    return raw.removesuffix(b"\n").removesuffix(b"\r").decode()
