"""Opens files that may be compressed."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from typing import IO, TYPE_CHECKING, Any, Final

from dsnb.arguments import one_of
from dsnb.system_limits import limit_error

if TYPE_CHECKING:
    from dsnb.cache.opened_files import OpenedFiles

compression_type_rule: Final = one_of(None, "", "GZIP", "ZLIB")
BUFFER_BYTES: Final = 256 * 1024
"""How much of a file is read at once by default, in bytes."""


def compression_of(compression_type: str | None, path: str) -> str:
    """Return the compression of a file; None means to use its suffix."""
    if compression_type is None:
        return "GZIP" if path.endswith(".gz") else ""
    return compression_type


def open_file(
    path: str, compression_type: str | None, buffer_bytes: int, opened_files: OpenedFiles | None
) -> IO[bytes]:
    """Open a file for reading its uncompressed bytes, and record it in `opened_files`."""
    compression = compression_of(compression_type, path)
    try:
        if compression == "GZIP":
            file: Any = gzip.open(path, "rb")  # noqa: SIM115 - closed by the reader
        else:
            file = open(path, "rb", buffering=max(2, buffer_bytes))  # noqa: SIM115 - likewise
    except OSError as error:
        if opened_files is not None and isinstance(error, FileNotFoundError):
            opened_files.add(path, None)
        limit = limit_error(error)
        if limit is None:
            raise
        raise limit from error
    if opened_files is not None:
        opened_files.add(path, os.fstat(file.fileno()))
    return io.BufferedReader(_ZlibReader(file), buffer_bytes) if compression == "ZLIB" else file


class _ZlibReader(io.RawIOBase):
    """A zlib stream as a readable file; the standard library has none."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._stream = zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = len(buffer)
        while not self._stream.eof:
            packed = self._stream.unconsumed_tail or self._file.read(room)
            data = self._stream.decompress(packed, room)
            if not packed and not data and not self._stream.eof:
                raise EOFError("the zlib stream ends before its end mark")
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0

    def close(self) -> None:
        self._file.close()
        super().close()
