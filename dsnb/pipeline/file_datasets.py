"""Datasets that read files given by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dsnb.arguments import anything, checked, integer, optional
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.operations.flat_map import FlatMap
from dsnb.pipeline.operations.interleave import DEFAULT_CYCLE, Interleave
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, compression_type_rule
from dsnb.pipeline.sources.files import ListFiles, Pattern, files_of, paths
from dsnb.pipeline.sources.parquet import columns_rule, plan
from dsnb.pipeline.sources.text_line import TextLines
from dsnb.pipeline.sources.tfrecord import TFRecords
from dsnb.pipeline.sources.web_samples import WebSamples, expand_braces
from dsnb.pipeline.validate import AUTOTUNE, parallel_calls
from dsnb.storage import urls

_BUFFER = optional(integer(1, 1 << 30))


def _paths_or_dataset(name: str, value: Any) -> Any:
    """Check and return paths, or a dataset of paths."""
    return value if isinstance(value, Dataset) else paths(name, value)


def _absolute(files: Pattern | Sequence[Pattern]) -> tuple[str, ...]:
    """Return paths as absolute ones, which workers with other working directories can open; URLs as they are."""
    assert isinstance(files, tuple)
    return tuple(map(urls.absolute, files))


class TextLineDataset(Dataset):
    """The lines of text files as `str`, without line ends, one file after another (as in tf.data).

    Args:
        filenames: One path or URL, or several.
        compression_type: "GZIP", "ZLIB", or "" for none; None chooses by suffix: `.gz` means GZIP.
        buffer_size: Bytes to read at once; None means 256 KiB, and 1 MiB of a file with a URL.

    Raises:
        InvalidArgumentError: for other arguments, and for a URL with a password. While reading: FileNotFoundError in
            place of a file's lines, before the next file; UnavailableError in place of the rest of a file that
            cannot be read from its store; UnicodeDecodeError in place of a line that is not valid UTF-8.
        FailedPreconditionError: a package that a URL needs is not installed.

    Example:
        >>> ds = TextLineDataset(["train.txt", "more.txt.gz"])
        >>> ds.map(str.split)
        Dataset(text_lines(2) | map(split), element_spec=unknown until read)
    """

    reads_files = True

    @checked(filenames=paths, compression_type=compression_type_rule, buffer_size=_BUFFER)
    def __init__(
        self,
        filenames: Pattern | Sequence[Pattern],
        compression_type: str | None = None,
        buffer_size: int | None = None,
    ) -> None:
        operation = TextLines(
            files=_absolute(filenames),
            compression=compression_type,
            buffer_bytes=buffer_size or BUFFER_BYTES,
        )
        super().__init__(operation)


class TFRecordDataset(Dataset):
    """The records of TFRecord files as `bytes`, one file after another (as in tf.data; TensorFlow is not needed).

    Checksums are verified, at memory speed if google-crc32c is installed (`pip install dsnb[tfrecord]`).

    Args:
        filenames: One path or URL, several, or a dataset of them.
        compression_type: "GZIP", "ZLIB", or "" for none; None chooses by suffix: `.gz` means GZIP.
        buffer_size: Bytes to read at once; None means 256 KiB, and 1 MiB of a file with a URL.
        num_parallel_reads: How many files to read at once on threads, taking their records by turns; `AUTOTUNE` means
            8. None reads one file after another.

    Raises:
        InvalidArgumentError: for other arguments, and for a URL with a password. While reading: FileNotFoundError in
            place of a file's records; UnavailableError in place of the rest of a file that cannot be read from its
            store; DataLossError with the file and the offset in place of a damaged record, and in place of the rest of
            a file that is truncated or whose record boundaries are lost.
        FailedPreconditionError: a package that a URL needs is not installed.

    Example:
        >>> ds = TFRecordDataset(["train-0.tfrecord", "train-1.tfrecord"])
        >>> ds
        TFRecordDataset(tfrecords(2), element_spec=TensorSpec((), bytes))
    """

    reads_files = True

    @checked(
        filenames=_paths_or_dataset,
        compression_type=compression_type_rule,
        buffer_size=_BUFFER,
        num_parallel_reads=parallel_calls,
    )
    def __init__(
        self,
        filenames: Pattern | Sequence[Pattern] | Dataset,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        buffer_bytes = buffer_size or BUFFER_BYTES
        if isinstance(filenames, Dataset):
            names = filenames.operation
        else:
            files = _absolute(filenames)
            if num_parallel_reads is None:
                super().__init__(TFRecords(files=files, compression=compression_type, buffer_bytes=buffer_bytes))
                return
            names = ListFiles(files=files, shuffle=False)
        read = partial(TFRecordDataset, compression_type=compression_type, buffer_size=buffer_bytes)
        super().__init__(_reading_operation(names, read, num_parallel_reads))


class ParquetDataset(Dataset):
    """The rows of Parquet files, in batches: each element is a dict with an array for each column.

    Row groups are the splits of a DYNAMIC job: workers share the row groups of all files, also those of one large
    file. The footers of the files are read now, and not again by workers. Files in a store are fetched several row
    groups ahead, only the bytes of the wanted columns.

    Text becomes arrays of fixed width, as in `batch`; dates and times become datetime64 and timedelta64 (times with a
    zone are in UTC); nulls become NaN or NaT, and are refused where the dtype has neither. Lists of one length become
    further dimensions, and structs dicts. docs/parquet_and_shards.md has a table of all types.

    Args:
        paths: Paths, URLs, patterns with `*`, or folders, one or several. A folder (a URL that ends with "/") stands
            for all files in it and below that end with `.parquet`.
        columns: The columns to read, None for all; as a dict with a dtype for each column to convert, and None for
            those to leave as they are: `{"price": "float64", "name": None}`.
        filters: Only rows for which this is true: tuples, as in `[("label", ">", 3)]`, or a pyarrow expression. Row
            groups without such rows are left out by their statistics now; `cardinality()` is unknown.
        batch_size: Rows of an element; None for whole row groups. A batch never spans row groups, so the last one of
            each row group may be smaller. `.rebatch(n)` after it gives equal batches.

    Raises:
        InvalidArgumentError: for other arguments, a column that is not there or cannot be read, or files with
            different columns.
        NotFoundError: no file matches a pattern, or a path has no file.
        FailedPreconditionError: pyarrow is not installed. While reading, an error takes the place of a batch that
            cannot be converted, of a row group that is damaged, and of a file that is broken, missing or was replaced.

    Example:
        >>> ds = ParquetDataset("train/*.parquet", columns=["image", "label"], batch_size=256)  # doctest: +SKIP
        >>> ds.element_spec  # doctest: +SKIP
        {'image': TensorSpec((None,), bytes), 'label': TensorSpec((None,), int64)}
    """

    reads_files = True

    @checked(paths=paths, columns=columns_rule, filters=anything, batch_size=optional(integer(1)))
    def __init__(
        self,
        paths: Pattern | Sequence[Pattern],
        columns: Sequence[str] | Mapping[str, Any] | None = None,
        filters: Any = None,
        batch_size: int | None = None,
    ) -> None:
        urls.require_package("pyarrow", "ParquetDataset", "pip install 'dsnb[parquet]'", "nothing was read")
        assert isinstance(paths, tuple)
        super().__init__(plan(files_of("paths", paths, ".parquet"), columns, filters, batch_size or 0))


class WebDataset(Dataset):
    """The samples of tar shards, as the library webdataset writes them; webdataset is not needed.

    A sample is a dict: `"__key__"` with its key as `str`, and the content of each of its files as `bytes` by the rest
    of the file's name, `{"__key__": "train/0001", "jpg": b"...", "cls": b"7"}`. The files of a sample stand next to
    each other in the shard; the key ends at the first dot of a file's name. A sample without one of its parts is a dict
    without it.

    Shards are the splits of a DYNAMIC job, and what FILE sharding divides.

    Args:
        urls: Paths, URLs or patterns of shards, one or several: with braces, `"train-{000..099}.tar"`, or with `*`.
            Shards that end in `.gz` or `.tgz` are decompressed.

    Raises:
        InvalidArgumentError: for anything else, and for a URL with a password. While reading: FileNotFoundError in
            place of a shard; DataLossError in place of the rest of a shard that is damaged or truncated;
            UnavailableError in place of the rest of a shard that cannot be read from its store.
        NotFoundError: no file matches a pattern with `*`.
        FailedPreconditionError: a package that a URL needs is not installed.

    Example:
        >>> ds = WebDataset("https://host/train-{000..099}.tar")  # doctest: +SKIP
        >>> ds.map(lambda sample: (decode(sample["jpg"]), int(sample["cls"])))  # doctest: +SKIP
    """

    reads_files = True

    @checked(urls=paths)
    def __init__(self, urls: Pattern | Sequence[Pattern]) -> None:
        assert isinstance(urls, tuple)
        names = [name for pattern in urls for name in expand_braces("urls", pattern)]
        super().__init__(WebSamples(files=files_of("urls", names)))


def _reading_operation(names: Operation, read: partial[TFRecordDataset], calls: int | None) -> Operation:
    """Return the operation that reads the files whose names a pipeline yields."""
    if calls is None:
        return FlatMap(inputs=(names,), function=read)
    cycle = DEFAULT_CYCLE if calls == AUTOTUNE else calls
    return Interleave(inputs=(names,), function=read, cycle=cycle, calls=calls)
