"""Tar shards for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

Files = Sequence[tuple[str, bytes]]


def shard(path: Path, files: Files, kind: int = tarfile.GNU_FORMAT) -> str:
    """Write a tar file, also with gzip, and return its path."""
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w", format=kind) as archive:  # type: ignore[call-overload]
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return str(path)


def samples(first: int, count: int) -> Files:
    return [(f"{n:04}.{part}", f"{part} {n}".encode()) for n in range(first, first + count) for part in ("jpg", "cls")]
