"""Reads row groups of Parquet files as Arrow tables: local files in place, files of a store several groups ahead.

Theory of operation. The footer, which the task already has, says where the column chunks of a row group are. Of a file
in a store only those bytes are requested: neighbouring chunks together, large ranges in pieces at the same time.
`RowGroupReader.expect` begins that for groups that will be read later. How many groups are expected is decided by
`ahead`: two at first, twice as many whenever the reader had to wait, within a limit of bytes.
"""

from __future__ import annotations

import io
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsnb.elements.spec import dtype_from_text
from dsnb.errors import DataLossError, DsnbError
from dsnb.pipeline.parquet.columns import arrow_type
from dsnb.pipeline.parquet.footers import Footers, broken, metadata_of
from dsnb.storage import urls
from dsnb.storage.read_ahead import result_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dsnb.cache.opened_files import OpenedFiles

_GAP_BYTES: Final = 256 * 1024
"""Unwanted bytes between two ranges up to which one request for both is faster than two."""
_PIECE_BYTES: Final = 8 << 20
_FIRST_AHEAD: Final = 2
_MOST_GROUPS_AHEAD: Final = 16
_MOST_BYTES_AHEAD: Final = 128 << 20
_OLD_WRITERS_EXCESS: Final = 100
"""Some old writers recorded column chunks as too short, by less than this."""
_KEPT_FILES: Final = 16

Range = tuple[int, int]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows and columns of each row group are wanted.

    Attributes:
        columns: The names of the columns of the elements.
        casts: The dtype, as text, of each column that is converted.
        read_columns: The names of all columns to read, including those that only the filter needs.
        condition: The filter as a pickled Arrow expression; empty for all rows.
    """

    columns: tuple[str, ...]
    casts: tuple[tuple[str, str], ...]
    read_columns: tuple[str, ...]
    condition: bytes = b""


class _Pieces(msgspec.Struct):
    """The bytes of one row group that are here or under way."""

    size: int
    starts: list[int]
    data: list[bytes]


class RowGroupReader:
    """Reads row groups of files.

    Args:
        files: Paths and URLs.
        sizes: The sizes of the files when their footers were read.
        footers: Their footers.
        selection: What to read.
        opened_files: Records the files that are opened; None if they need not be recorded.
    """

    def __init__(
        self,
        files: Sequence[str],
        sizes: Sequence[int],
        footers: Footers,
        selection: Selection,
        opened_files: OpenedFiles | None,
    ) -> None:
        self._files = files
        self._sizes = sizes
        self._footers = footers
        self._selection = selection
        self._opened_files = opened_files
        self._metadata: dict[int, pq.FileMetaData] = {}
        self._remote: dict[int, urls.RemoteFile] = {}
        self._remote_lock = threading.Lock()
        self._asking: dict[int, threading.Lock] = {}
        """Held while a file's size is asked for: row groups that are fetched meanwhile wait for the answer."""
        self._expected: dict[tuple[int, int], Future[_Pieces]] = {}
        self._expected_bytes: dict[tuple[int, int], int] = {}
        self.lost_files: set[int] = set()
        """Files that were found to be missing, or replaced since the dataset was made."""
        self._ahead = _FIRST_AHEAD
        self._condition: Any = None

    @property
    def ahead(self) -> int:
        """How many row groups after the present one should be expected now."""
        full = sum(self._expected_bytes.values()) >= _MOST_BYTES_AHEAD
        return len(self._expected) if full else self._ahead

    def expect(self, file: int, group: int) -> None:
        """Begin to fetch a row group of a file in a store; nothing for a local file."""
        if urls.is_url(self._files[file]) and self._footer_is_known(file):
            ranges = self._ranges(file, group)
            self._expected[file, group] = urls.on_thread(lambda: self._fetch(file, ranges))
            self._expected_bytes[file, group] = sum(end - start for start, end in ranges)

    def _footer_is_known(self, file: int) -> bool:
        return bool(self._footers.footer(file))

    def read(self, file: int, group: int) -> pa.Table:
        """Read the wanted rows and columns of a row group.

        Raises:
            FileNotFoundError: the file is not there.
            DataLossError: the row group is damaged, or the file is not the one whose footer was read.
            UnavailableError: it cannot be read from its store.
        """
        path = self._files[file]
        try:
            table = self._read_remote(file, group) if urls.is_url(path) else self._read_local(file, group)
            return self._select(table)
        except FileNotFoundError:
            self.lost_files.add(file)
            raise
        except (DsnbError, MemoryError):
            raise
        except OSError as error:
            if error.errno is not None:
                raise
            raise _damaged(path, group, error) from error
        except Exception as error:  # Arrow raises several kinds for damaged data
            raise _damaged(path, group, error) from error

    def _read_local(self, file: int, group: int) -> pa.Table:
        path = self._files[file]
        try:
            opened = open(path, "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError as error:
            if self._opened_files is not None:
                self._opened_files.add(path, None)
            raise urls.add_host(error) from None
        with opened:
            state = os.fstat(opened.fileno())
            if self._opened_files is not None:
                self._opened_files.add(path, state)
            self._check_size(file, state.st_size)
            return self._read_table(opened, file, group)

    def _read_remote(self, file: int, group: int) -> pa.Table:
        if (file, group) not in self._expected:
            self.expect(file, group)
        fetch = self._expected[file, group]
        if not fetch.done():
            self._ahead = min(2 * self._ahead, _MOST_GROUPS_AHEAD)
        pieces = result_of(fetch, self._files[file])
        self.forget(file, group)
        self._check_size(file, pieces.size)
        return self._read_table(_PiecesFile(pieces), file, group)

    def _read_table(self, source: Any, file: int, group: int) -> pa.Table:
        import pyarrow.parquet as pq

        opened = pq.ParquetFile(source, metadata=self._metadata_of(file), pre_buffer=False)
        return opened.read_row_group(group, list(self._selection.read_columns), use_threads=False)

    def _select(self, table: pa.Table) -> pa.Table:
        selection = self._selection
        if selection.condition:
            table = self._filter(table)
        table = table.select(list(selection.columns))
        for name, dtype in selection.casts:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table.column(at).cast(arrow_type(dtype_from_text(dtype))))
        return table

    def _filter(self, table: pa.Table) -> pa.Table:
        import pickle

        from pyarrow.acero import Declaration, FilterNodeOptions, TableSourceNodeOptions

        if self._condition is None:
            self._condition = pickle.loads(self._selection.condition)
        source = Declaration("table_source", TableSourceNodeOptions(table))
        kept = Declaration("filter", FilterNodeOptions(self._condition), inputs=[source])
        return kept.to_table(use_threads=False)  # with threads, the order of rows is not kept

    def _metadata_of(self, file: int) -> pq.FileMetaData:
        found = self._metadata.get(file)
        if found is None:
            while len(self._metadata) >= _KEPT_FILES:
                del self._metadata[next(iter(self._metadata))]
            found = self._metadata[file] = metadata_of(self._footers.footer(file))
        return found

    def _check_size(self, file: int, size: int) -> None:
        if size != self._sizes[file]:
            self.lost_files.add(file)
            raise DataLossError(
                f"{urls.shown(self._files[file])} had {self._sizes[file]:,} bytes when the dataset was made, and has "
                f"{size:,} now",
                did="its row groups were left out; reading continues with the next file",
                hint="make the dataset again: it has the old file's row groups",
            )

    # ---- files in a store

    def _ranges(self, file: int, group: int) -> list[Range]:
        """The ranges of bytes that hold the wanted columns of a row group."""
        wanted = set(self._selection.read_columns)
        metadata = self._metadata_of(file)
        found = metadata.row_group(group)
        chunks = [found.column(number) for number in range(found.num_columns)]
        ranges = [_range_of(chunk, self._sizes[file]) for chunk in chunks if _top_name(chunk, wanted)]
        return _cut(_joined(sorted(ranges)))

    def _fetch(self, file: int, ranges: Sequence[Range]) -> _Pieces:
        """Fetch ranges of a file, all at the same time; runs on a thread of its own."""
        url = self._files[file]
        remote = self._remote_file(file)
        fetches = [remote.fetch(*part) for part in ranges[1:]]
        first = [remote.read(*part) for part in ranges[:1]]
        return _Pieces(
            size=self._sizes[file] if remote.size is None else remote.size,
            starts=[start for start, _ in ranges],
            data=first + [result_of(fetch, url) for fetch in fetches],
        )

    def _remote_file(self, file: int) -> urls.RemoteFile:
        with self._remote_lock:
            asking = self._asking.setdefault(file, threading.Lock())
        with asking:
            with self._remote_lock:
                found = self._remote.get(file)
            return self._ask(file) if found is None else found

    def _ask(self, file: int) -> urls.RemoteFile:
        """Ask the store for the size of a file, and remember it."""
        try:
            found = urls.RemoteFile(self._files[file])
        except FileNotFoundError:
            if self._opened_files is not None:
                self._opened_files.add_url(self._files[file], None)
            raise
        if self._opened_files is not None:
            self._opened_files.add_url(self._files[file], found.version_text)
        with self._remote_lock:
            while len(self._remote) >= _KEPT_FILES:
                oldest = next(iter(self._remote))
                del self._remote[oldest]
                self._asking.pop(oldest, None)
            self._remote[file] = found
        return found

    def forget(self, file: int, group: int) -> None:
        """Forget a row group that was expected and is not read."""
        self._expected.pop((file, group), None)
        self._expected_bytes.pop((file, group), None)

    def close(self) -> None:
        """Forget what was expected; requests under way end by themselves."""
        self._expected.clear()
        self._expected_bytes.clear()


def _top_name(chunk: Any, wanted: set[str]) -> bool:
    """Whether a column chunk belongs to a wanted column; names may contain dots, nested ones are joined by them."""
    path = chunk.path_in_schema
    return path in wanted or any(path.startswith(f"{name}.") for name in wanted)


def _range_of(chunk: Any, size: int) -> Range:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return start, min(size, start + chunk.total_compressed_size + _OLD_WRITERS_EXCESS)


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Join ranges with small gaps between them."""
    out = list(ranges[:1])
    for start, end in ranges[1:]:
        if start - out[-1][1] <= _GAP_BYTES:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def _cut(ranges: Sequence[Range]) -> list[Range]:
    """Cut large ranges into pieces."""
    return [part for first, end in ranges for part in pairwise([*range(first, end, _PIECE_BYTES), end])]


class _PiecesFile(io.RawIOBase):
    """A file of which only some pieces are there, and only those are read."""

    def __init__(self, pieces: _Pieces) -> None:
        super().__init__()
        self._pieces = pieces
        self._position = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._pieces.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._pieces.size if size < 0 else min(self._position + size, self._pieces.size)
        parts = []
        while self._position < end:
            at = bisect_right(self._pieces.starts, self._position) - 1
            begin = self._position - self._pieces.starts[at] if at >= 0 else 0
            part = self._pieces.data[at][begin : begin + end - self._position] if at >= 0 else b""
            if not part:
                break
            parts.append(part)
            self._position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _damaged(path: str, group: int, error: Exception) -> DataLossError:
    return broken(
        path,
        f"has a row group that cannot be read, number {group} ({error})",
        "the row group was left out; reading continues with the next",
    )
