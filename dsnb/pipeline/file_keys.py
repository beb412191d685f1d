"""What is known of the files that a pipeline names: a recording of their contents must not outlive a change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from dsnb.pipeline.operation import Operation, walk
from dsnb.pipeline.splits import FileSource

_PIECE = 1 << 20


class FileKey(NamedTuple):
    """One file: its size and time of change, or the digest of its content instead of the time."""

    path: str
    size: int
    changed_ns: int
    digest: str


def file_keys(operation: Operation, *, content: bool) -> tuple[FileKey, ...]:
    """What is known of all files that a pipeline's sources name.

    Args:
        operation: The pipeline.
        content: Read the files, instead of believing the time of their last change.
    """
    return tuple(_key(path, content) for path in _paths(operation))


def _paths(operation: Operation) -> Iterator[str]:
    for step in walk(operation):
        if isinstance(step, FileSource):
            yield from step.files


def _key(path: str, content: bool) -> FileKey:
    try:
        found = os.stat(path)
        if content:
            return FileKey(path, found.st_size, 0, _digest(path))
    except OSError:
        # Reading will say so; once it is there it is another recording.
        return FileKey(path, -1, 0, "")
    return FileKey(path, found.st_size, found.st_mtime_ns, "")


def _digest(path: str) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
