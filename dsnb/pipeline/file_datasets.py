"""Datasets that read files given by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from dsnb.arguments import checked, integer, optional
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.operations.flat_map import FlatMap
from dsnb.pipeline.operations.interleave import DEFAULT_CYCLE, Interleave
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, compression_type_rule
from dsnb.pipeline.sources.files import ListFiles, Pattern, paths
from dsnb.pipeline.sources.text_line import TextLines
from dsnb.pipeline.sources.tfrecord import TFRecords
from dsnb.pipeline.validate import AUTOTUNE, parallel_calls

_BUFFER = optional(integer(1, 1 << 30))


def _paths_or_dataset(name: str, value: Any) -> Any:
    """Check and return paths, or a dataset of paths."""
    return value if isinstance(value, Dataset) else paths(name, value)


def _absolute(files: Pattern | Sequence[Pattern]) -> tuple[str, ...]:
    """Return paths as absolute ones, which workers with other working directories can open."""
    assert isinstance(files, tuple)
    return tuple(map(os.path.abspath, files))


class TextLineDataset(Dataset):
    """The lines of text files as `str`, without line ends, one file after another (as in tf.data).

    Args:
        filenames: One path or several.
        compression_type: "GZIP", "ZLIB", or "" for none; None chooses by suffix: `.gz` means GZIP.
        buffer_size: Bytes to read at once; None means 256 KiB.

    Raises:
        InvalidArgumentError: for other arguments. While reading: FileNotFoundError in place of a file's lines, before
            the next file; UnicodeDecodeError in place of a line that is not valid UTF-8.

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
        filenames: One path or several, or a dataset of paths.
        compression_type: "GZIP", "ZLIB", or "" for none; None chooses by suffix: `.gz` means GZIP.
        buffer_size: Bytes to read at once; None means 256 KiB.
        num_parallel_reads: How many files to read at once on threads, taking their records by turns; `AUTOTUNE` means
            8. None reads one file after another.

    Raises:
        InvalidArgumentError: for other arguments. While reading: FileNotFoundError in place of a file's records;
            DataLossError with the file and the offset in place of a damaged record, and in place of the rest of a file
            that is truncated or whose record boundaries are lost.

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


def _reading_operation(names: Operation, read: partial[TFRecordDataset], calls: int | None) -> Operation:
    """Return the operation that reads the files whose names a pipeline yields."""
    if calls is None:
        return FlatMap(inputs=(names,), function=read)
    cycle = DEFAULT_CYCLE if calls == AUTOTUNE else calls
    return Interleave(inputs=(names,), function=read, cycle=cycle, calls=calls)
