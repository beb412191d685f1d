"""Datasets that are made of the names of files."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.sources.files import Pattern, paths_of
from dsnb.pipeline.sources.text_line import BUFFER_BYTES, COMPRESSIONS, TextLines
from dsnb.pipeline.validate import optional_whole


class TextLineDataset(Dataset):
    """The lines of text files as `str`, without their line ends, one file after the other (as in tf.data).

    Args:
        filenames: A path or several.
        compression_type: "GZIP", "ZLIB", "" for none; None goes by the suffix: `.gz` is GZIP.
        buffer_size: Bytes to read at a time; None means 256 KiB.

    Raises:
        InvalidArgumentError: for anything else. While reading: FileNotFoundError in the place of a file's lines, then
            the next file; UnicodeDecodeError in the place of a line that is no UTF-8.

    Example:
        >>> ds = TextLineDataset(["train.txt", "more.txt.gz"])
        >>> ds.map(str.split)
        Dataset(text_lines(2) | map(split), element_spec=unknown until read)
    """

    reads_files = True

    def __init__(
        self,
        filenames: Pattern | Sequence[Pattern],
        compression_type: str | None = None,
        buffer_size: int | None = None,
    ) -> None:
        if compression_type not in COMPRESSIONS:
            raise InvalidArgumentError(
                f"`compression_type` is {compression_type!r}", hint='pass None, "", "GZIP" or "ZLIB"'
            )
        operation = TextLines(
            files=tuple(map(os.path.abspath, paths_of("filenames", filenames))),
            compression=compression_type,
            buffer_bytes=optional_whole("buffer_size", buffer_size, 1) or BUFFER_BYTES,
        )
        super().__init__(operation)
