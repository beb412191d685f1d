"""The footers of Parquet files: read once, where the dataset is made, and sent with the pipeline.

A footer says which columns and row groups a file has and where they are, so that a worker reads nothing but the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from dsnb.errors import DataLossError, DsnbError
from dsnb.storage import urls

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 16
_FEWEST_FOR_THREADS: Final = 4


class Footer(msgspec.Struct, frozen=True):
    """The end of one file.

    Attributes:
        size: The file's size in bytes.
        data: The metadata; empty if they cannot be read.
        error: Why they cannot be read.
    """

    size: int
    data: bytes = b""
    error: DsnbError | OSError | None = None


def read_footers(files: Sequence[str]) -> list[Footer]:
    """Read the footers of files, several at once."""
    if len(files) < _FEWEST_FOR_THREADS:
        return list(map(_read_footer, files))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dsnb-footers") as threads:
        return list(threads.map(_read_footer, files))


def _read_footer(path: str) -> Footer:
    try:
        if urls.is_url(path):
            remote = urls.RemoteFile(path)
            data = b"" if remote.size is not None else remote.read_all()
            return _footer(path, remote.size or len(data), remote.read if remote.size else _slicing(data))
        with open(path, "rb") as file:
            return _footer(path, os.fstat(file.fileno()).st_size, lambda start, end: _read_at(file, start, end))
    except (DsnbError, OSError) as error:
        return Footer(-1, error=error)


def _slicing(data: bytes) -> Callable[[int, int], bytes]:
    return lambda start, end: data[start:end]


def _read_at(file: Any, start: int, end: int) -> bytes:
    file.seek(start)
    return bytes(file.read(end - start))


def _footer(path: str, size: int, read: Callable[[int, int], bytes]) -> Footer:
    start = max(0, size - _TAIL_BYTES)
    tail = read(start, size)
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < 12 or tail[-4:] != _MAGIC or length + 12 > size:
        return Footer(size, error=broken(path, "does not end as a Parquet file does"))
    begin = size - 8 - length
    data = tail[begin - start : -8] if begin >= start else read(begin, size - 8)
    try:
        metadata_of(data)
    except Exception as error:  # noqa: BLE001 - Arrow raises several kinds for damaged metadata
        return Footer(size, error=broken(path, f"has metadata that cannot be read ({error})"))
    return Footer(size, data)


def broken(path: str, what: str, did: str = "it was left out; reading continues with the next file") -> DataLossError:
    """The error for a file that is no Parquet file, or no whole one."""
    return DataLossError(f"{urls.shown(path)} {what}", did=did, hint="write it again, or leave it out of `paths`")


def as_file(footer: bytes) -> pa.BufferReader:
    """The shortest file with a footer: it has metadata and no data."""
    import pyarrow as pa

    return pa.BufferReader(_MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC)


def metadata_of(footer: bytes) -> pq.FileMetaData:
    """The metadata of a footer."""
    import pyarrow.parquet as pq

    return pq.read_metadata(as_file(footer))


def schema_of(footer: bytes) -> pa.Schema:
    """The Arrow schema of a footer: the types with which the file's columns are read."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(as_file(footer)).schema_arrow


def matching_groups(footer: bytes, condition: Any, schema: pa.Schema) -> list[int]:
    """The row groups that may have rows for which a filter is true, by the statistics of the columns."""
    import pyarrow.dataset as pads

    buffer = as_file(footer).read_buffer()
    fragment = pads.ParquetFileFormat().make_fragment(buffer)
    kept = fragment.split_by_row_group(filter=condition, schema=schema)
    return [group.id for piece in kept for group in piece.row_groups]


class Footers(msgspec.Struct, frozen=True):
    """The footers of several files, in one array, so that large ones travel apart from the pipeline.

    Attributes:
        data: All footers, one after another.
        ends: Where each one ends.
    """

    data: np.ndarray[Any, Any]
    ends: tuple[int, ...]

    def footer(self, file: int) -> bytes:
        """The footer of one file."""
        return self.data[self.ends[file - 1] if file else 0 : self.ends[file]].tobytes()


def joined(footers: Sequence[bytes]) -> Footers:
    """Join footers."""
    ends = np.cumsum([len(footer) for footer in footers], dtype=np.int64)
    return Footers(np.frombuffer(b"".join(footers), np.uint8), tuple(map(int, ends)))
