"""Reads the records of one TFRecord file.

A file is a sequence of records and nothing else. A record is its length (8 bytes, little-endian), the length's masked
checksum (4 bytes), the data, and the data's masked checksum (4 bytes).
"""

from __future__ import annotations

import struct
import zlib
from typing import IO, Final

from dsnb.errors import DataLossError, DsnbError
from dsnb.pipeline.tfrecord.crc32c import masked_crc32c

HEADER: Final = struct.Struct("<QI")
LENGTH: Final = struct.Struct("<Q")
CHECKSUM: Final = struct.Struct("<I")
_MAX_READ_BYTES: Final = 1 << 24


class RecordReader:
    """Reads the records of a file one after another.

    Args:
        file: The file, at its start; `close` closes it.
        path: Its name, for errors.
        buffer_bytes: How much to read at once, in bytes.
    """

    def __init__(self, file: IO[bytes], path: str, buffer_bytes: int) -> None:
        self._file = file
        self._path = path
        self._buffer_bytes = buffer_bytes
        self._buffer = b""
        self._offset = 0
        self._buffer_start = 0
        """Offset of the buffer in the file."""
        self._rest_unreadable = False

    def next(self) -> bytes | None:
        """Return the next record; None at the end of the file, and after damage that hides where the next one begins.

        Raises:
            DataLossError: a record is damaged; the message names the file and the offset. If only its data are damaged,
                the next call continues with the following record.
        """
        if self._rest_unreadable or not self._fill(1):
            return None
        offset = self._buffer_start + self._offset
        if not self._fill(HEADER.size):
            raise self._give_up(offset, "is cut off in its head")
        length, checksum = HEADER.unpack_from(self._buffer, self._offset)
        if masked_crc32c(self._buffer[self._offset : self._offset + LENGTH.size]) != checksum:
            raise self._give_up(offset, "has a length that does not go with its checksum")
        if not self._fill(HEADER.size + length + CHECKSUM.size):
            raise self._give_up(offset, f"is cut off: it should have {length:,} bytes")
        begin = self._offset + HEADER.size
        self._offset = begin + length + CHECKSUM.size
        data = self._buffer[begin : begin + length]
        (checksum,) = CHECKSUM.unpack_from(self._buffer, begin + length)
        if masked_crc32c(data) != checksum:
            raise self._damaged(
                offset, "has data that do not go with their checksum", "reading continues with the next"
            )
        return data

    def _fill(self, count: int) -> bool:
        """Read until `count` bytes are in the buffer; False if the file ends before that."""
        missing = count - (len(self._buffer) - self._offset)
        if missing <= 0:
            return True
        parts = [self._buffer[self._offset :]]
        self._buffer_start += self._offset
        while missing > 0:
            # The length of a damaged record may exceed the memory: read it in limited parts.
            part = self._read(min(max(missing, self._buffer_bytes), _MAX_READ_BYTES))
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        self._buffer = b"".join(parts)
        self._offset = 0
        return missing <= 0

    def _read(self, count: int) -> bytes:
        try:
            return self._file.read(count)
        except (DsnbError, EOFError, zlib.error, OSError) as error:
            # An error of the disk or of a store, not of decompression.
            if isinstance(error, DsnbError) or getattr(error, "errno", None) is not None:
                self._rest_unreadable = True
                raise
            raise self._give_up(self._buffer_start, f"cannot be unpacked ({error})") from error

    def _give_up(self, offset: int, what: str) -> DataLossError:
        self._rest_unreadable = True
        return self._damaged(offset, what, "the rest of the file was left out; reading continues with the next file")

    def _damaged(self, offset: int, what: str, did: str) -> DataLossError:
        return DataLossError(
            f"the record at byte {offset:,} of {self._path} {what}",
            did=did,
            hint="write it again; if it is compressed, pass its `compression_type` (offsets count what was packed)",
        )

    def close(self) -> None:
        """Close the file that is read."""
        self._file.close()
