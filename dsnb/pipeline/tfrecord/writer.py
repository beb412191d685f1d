"""`TFRecordWriter`: writes records to a file that any TFRecord reader can read."""

from __future__ import annotations

import gzip
import os
import zlib
from functools import partial
from types import TracebackType
from typing import IO, Any, Self, cast

from dsnb.arguments import buffer, checked, path
from dsnb.errors import FailedPreconditionError
from dsnb.pipeline.sources.compressed import compression_of, compression_type_rule
from dsnb.pipeline.tfrecord.crc32c import masked_crc32c
from dsnb.pipeline.tfrecord.reader import CHECKSUM, HEADER, LENGTH
from dsnb.system_limits import describe_os_error


class TFRecordWriter:
    """Writes records to a TFRecord file; an existing file is overwritten (as in TensorFlow).

    Args:
        path: The file.
        compression_type: "GZIP", "ZLIB", or "" for none; None chooses by suffix: `.gz` means GZIP.

    Raises:
        InvalidArgumentError: for another compression.
        FailedPreconditionError: the file cannot be opened.

    Example:
        >>> import dsnb, os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "numbers.tfrecord")
        ...     with TFRecordWriter(path) as writer:
        ...         for number in range(3):
        ...             writer.write(b"record %d" % number)
        ...     list(dsnb.TFRecordDataset(path))
        [b'record 0', b'record 1', b'record 2']
    """

    @checked(path=path, compression_type=compression_type_rule)
    def __init__(self, path: str | os.PathLike[str], compression_type: str | None = None) -> None:
        self._path = str(path)
        try:
            self._file: IO[bytes] | None = _create_file(self._path, compression_of(compression_type, self._path))
        except OSError as error:
            raise FailedPreconditionError(
                f"`path`: {self._path} cannot be written to ({describe_os_error(error)})",
                did="nothing was written",
                hint="name a file in a folder that you may write to",
            ) from None

    @checked(
        record=partial(
            buffer, hint='encode text with text.encode(), and a dict of arrays with dsnb.serialize_example({"x": x})'
        )
    )
    def write(self, record: bytes) -> None:
        """Append one record to the file.

        Args:
            record: `bytes`, or an object that exports a buffer; for a dict of arrays, `dsnb.serialize_example(...)`.

        Raises:
            InvalidArgumentError: for anything else.
            FailedPreconditionError: the writer is closed.
        """
        if self._file is None:
            raise FailedPreconditionError(f"the writer of {self._path} is closed", hint="write inside its `with` block")
        length = LENGTH.pack(len(record))
        head = HEADER.pack(len(record), masked_crc32c(length))
        self._file.write(b"".join((head, record, CHECKSUM.pack(masked_crc32c(record)))))

    @checked()
    def flush(self) -> None:
        """Pass written records to the operating system; with compression, only the part that is already compressed."""
        if self._file is not None:
            self._file.flush()

    @checked()
    def close(self) -> None:
        """Finish the file; a second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _create_file(path: str, compression: str) -> IO[bytes]:
    if compression == "GZIP":
        return cast("IO[bytes]", gzip.open(path, "wb"))
    file = open(path, "wb")  # noqa: SIM115 - closed by the writer
    return cast("IO[bytes]", _ZlibWriter(file)) if compression == "ZLIB" else file


class _ZlibWriter:
    """A zlib stream as a writable file; the standard library has none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = zlib.compressobj()

    def write(self, data: bytes) -> Any:
        return self._file.write(self._stream.compress(data))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Write the compressed rest with the end mark, and close the file."""
        self._file.write(self._stream.flush())
        self._file.close()
