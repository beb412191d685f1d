"""Opens files that may be compressed."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from typing import IO, TYPE_CHECKING, Any, Final

from dsnb.arguments import one_of
from dsnb.storage import urls
from dsnb.storage.read_ahead import BLOCK_BYTES, ReadAhead
from dsnb.system_limits import limit_error

if TYPE_CHECKING:
    from dsnb.cache.opened_files import OpenedFiles

compression_type_rule: Final = one_of(None, "", "GZIP", "ZLIB")
BUFFER_BYTES: Final = 256 * 1024
"""How much of a local file is read at once by default, in bytes."""


def compression_of(compression_type: str | None, path: str) -> str:
    """Return the compression of a file; None means to use its suffix."""
    if compression_type is None:
        return "GZIP" if urls.shown(path).endswith(".gz") else ""
    return compression_type


def open_file(
    path: str, compression_type: str | None, buffer_bytes: int, opened_files: OpenedFiles | None
) -> IO[bytes]:
    """Open a file by its path or URL for reading its uncompressed bytes, and record it in `opened_files`."""
    file: Any = (_open_url if urls.is_url(path) else _open)(path, buffer_bytes, opened_files)
    compression = compression_of(compression_type, path)
    if compression == "GZIP":
        file = _ClosingReader(file)
    elif compression == "ZLIB":
        file = io.BufferedReader(_ZlibReader(file), buffer_bytes)
    return file  # type: ignore[no-any-return]  # a file of any of these classes


def _open(path: str, buffer_bytes: int, opened_files: OpenedFiles | None) -> IO[bytes]:
    try:
        file = open(path, "rb", buffering=max(2, buffer_bytes))  # noqa: SIM115 - closed by the reader
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            urls.add_host(error)
            if opened_files is not None:
                opened_files.add(path, None)
        limit = limit_error(error)
        if limit is None:
            raise
        raise limit from error
    if opened_files is not None:
        opened_files.add(path, os.fstat(file.fileno()))
    return file


def _open_url(url: str, buffer_bytes: int, opened_files: OpenedFiles | None) -> IO[bytes]:
    try:
        file = urls.RemoteFile(url)
    except FileNotFoundError:
        if opened_files is not None:
            opened_files.add_url(url, None)
        raise
    if opened_files is not None:
        opened_files.add_url(url, file.version_text)
    return io.BufferedReader(ReadAhead(file, max(buffer_bytes, BLOCK_BYTES)), max(2, buffer_bytes))


class _ClosingReader(gzip.GzipFile):
    """Decompresses a file and closes it with itself, which `GzipFile` does only if it opened the file."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._file = file

    def close(self) -> None:
        super().close()
        self._file.close()


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
