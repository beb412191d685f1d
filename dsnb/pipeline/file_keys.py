"""What is known of the files that a pipeline names: a recording of their contents must not outlive a change."""

from __future__ import annotations

import os
from collections.abc import Iterator

import xxhash

from dsnb.pipeline.operation import Operation, walk
from dsnb.pipeline.splits import FileSource

_PIECE = 1 << 20


def file_keys(operation: Operation, *, content: bool) -> dict[str, str]:
    """What is known of all files that a pipeline's sources name, by path.

    Args:
        operation: The pipeline.
        content: Read the files, instead of believing the time of their last change.
    """
    return {path: _state(path, content) for path in _paths(operation)}


def _paths(operation: Operation) -> Iterator[str]:
    for step in walk(operation):
        if isinstance(step, FileSource):
            yield from step.files


def _state(path: str, content: bool) -> str:
    try:
        found = os.stat(path)
        changed = f"content {_digest(path)}" if content else f"changed at {found.st_mtime_ns}"
    except OSError:
        return "not there"  # reading will say so; once it is there it is another recording
    return f"{found.st_size} bytes, {changed}"


def _digest(path: str) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
