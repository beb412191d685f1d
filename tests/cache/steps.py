"""Outputs of steps of a training, for tests of the training cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsnb.cache.results.model_storage import ModelStorage
from dsnb.cache.results.training import LocalTrainingCache

MEBIBYTE = 1 << 20
ENTRY_FILES = ("cache.db", "cache.db-wal", "cache.db-shm", "cache.db-journal", "cache.db-calls")


class Output:
    """An output that stores `size` bytes made from its value."""

    def __init__(self, value: str, size: int = 10) -> None:
        self.value = value
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Output) and (self.value, self.size) == (other.value, other.size)

    __hash__ = None

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        (directory / "value").write_text(self.value)
        (directory / "folder").mkdir()
        (directory / "folder" / "filling").write_bytes(filling(self.value, self.size))

    @classmethod
    def from_cache(cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str) -> Any:
        value = (directory / "value").read_text()
        content = (directory / "folder" / "filling").read_bytes()
        assert content == filling(value, len(content)), f"the bytes of {value!r} are not as they were written"
        return cls(value, len(content))


def filling(value: str, size: int) -> bytes:
    """Bytes that tell by themselves whether they are whole."""
    piece = value.encode() + b"|"
    return (piece * (size // len(piece) + 1))[:size]


def put(cache: LocalTrainingCache, name: str, size: int = 10, **more: Any) -> Output:
    """Store an output under the key "key NAME" with the fingerprint "output NAME"."""
    output = Output(name, size)
    cache.cache_output(f"key {name}", output, f"output {name}", storage(cache), **more)
    return output


def get(cache: LocalTrainingCache, name: str) -> Any:
    """The output that `put` stored."""
    return cache.get_cached_result(f"output {name}", "step", storage(cache))


def known(cache: LocalTrainingCache, name: str) -> bool:
    """Whether the fingerprint that `put` stored is there."""
    return cache.get_cached_output_fingerprint(f"key {name}") == f"output {name}"


def storage(cache: LocalTrainingCache) -> ModelStorage:
    return ModelStorage(cache.directory.parent / "model")


def results(cache: LocalTrainingCache) -> list[Path]:
    """What is in the cache's folder beside the database."""
    return sorted(path for path in cache.directory.iterdir() if path.name not in ENTRY_FILES)


def weight(paths: list[Path]) -> int:
    """The bytes of files and of all files below folders."""
    return sum(os.path.getsize(file) for path in paths for file in ([path] if path.is_file() else path.rglob("*"))
               if not os.path.isdir(file))  # fmt: skip
