"""What recordings and the training cache do on a disk that is full, or read-only; run in an interpreter of its own."""

from __future__ import annotations

import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import disks

if TYPE_CHECKING:  # the disk comes first: what is imported may start threads
    import dsnb

_SMALL, _LARGE = 100, 5000
"""Elements of 1 kB: the disk has 2 MB."""


def _main(kind: str, name: str) -> None:
    folder = Path(name)
    if kind in ("full", "read-only"):
        try:
            disks.mount(name, "2m")
        except OSError as error:
            sys.stdout.write(f"CANNOT {error}\n")
            return
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    {"full": full, "read-only": read_only, "limited": limited}[kind](folder)
    sys.stdout.write("DONE\n")


def dataset(folder: Path, count: int) -> dsnb.Dataset:
    import numpy as np

    import dsnb

    calls = str(folder.parent / "calls")

    def row(x: int) -> np.ndarray:
        with open(calls, "ab", buffering=0) as file:
            file.write(b".")
        return np.full(1000, x % 251, np.uint8)

    return dsnb.Dataset.range(count).map(row).cache(folder / "recordings", chunk_bytes=64_000)


def read(folder: Path, count: int, warned: str = "") -> int:
    """Read a dataset right, with this warning and no other; how often the function was called for it."""
    calls = folder.parent / "calls"
    before = calls.stat().st_size if calls.exists() else 0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [int(row[0]) for row in dataset(folder, count)]
    assert found == [x % 251 for x in range(count)]
    assert all(warned in str(one.message) for one in told), [str(one.message) for one in told]
    assert bool(told) is bool(warned), told
    return calls.stat().st_size - before


def fill(path: Path) -> None:
    """Leave no room."""
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@contextmanager
def training(folder: Path) -> Iterator[tuple[Callable[[str, int], str], Callable[[str], bool]]]:
    """Ways to store a result, and to tell how that went; and whether one is there."""
    from dsnb.errors import ResourceExhaustedError
    from tests.cache.steps import LocalTrainingCache, get, put

    with LocalTrainingCache(folder / "training", max_size=10) as cache:

        def store(name: str, size: int) -> str:
            try:
                put(cache, name, size)
            except ResourceExhaustedError:
                return "full"
            return "stored" if get(cache, name) is not None else "not stored"

        yield store, lambda name: get(cache, name) is not None


def full(folder: Path) -> None:
    """Nothing that is there is lost, nothing wrong is served, and when there is room again all goes on."""
    from dsnb.cache.recordings.catalogue import entries, remove, verify

    recordings = str(folder / "recordings")
    with training(folder) as (store, is_there):
        assert store("small", 1000) == "stored"
        assert read(folder, _SMALL) == _SMALL
        assert read(folder, _LARGE, "No space left on device") == _LARGE
        fill(folder / "filling")
        assert store("large", 500_000) in ("full", "not stored")
        assert store("another", 1000) in ("full", "not stored")
        assert read(folder, _SMALL) == 0
        assert is_there("small")
        (folder / "filling").unlink()
        remove(recordings, [entry.key for entry in entries(recordings) if entry.state == "partial"])
        assert store("another", 1000) == "stored"
        assert is_there("small")
    assert read(folder, _SMALL) == 0
    assert not [problem for _, problem in verify(recordings) if problem]
    assert not [path for path in folder.rglob("*") if ".aside-" in path.name or path.name.startswith("aside-")]


def limited(folder: Path) -> None:
    """As a full disk, by the size of one file."""
    from dsnb.cache.recordings.catalogue import verify

    assert read(folder, _LARGE, "File too large") == _LARGE
    # A segment takes a megabyte; the next pass goes on in another one.
    assert read(folder, _LARGE, "File too large") < _LARGE
    assert not [problem for _, problem in verify(str(folder / "recordings")) if problem]


def read_only(folder: Path) -> None:
    """What is there is read; what is not is made, without the cache."""
    from dsnb.cache.recordings.catalogue import entries, remove
    from dsnb.errors import PermissionDeniedError

    with training(folder) as (store, _):
        assert store("small", 1000) == "stored"
    assert read(folder, _SMALL) == _SMALL
    disks.make_read_only(str(folder))
    assert read(folder, _SMALL) == 0
    assert read(folder, _SMALL + 1, "Read-only file system") == _SMALL + 1
    with training(folder) as (store, is_there):
        assert is_there("small")
        assert store("another", 1000) == "not stored"
    assert [entry.state for entry in entries(str(folder / "recordings"))] == ["complete"]
    with pytest.raises(PermissionDeniedError, match="Read-only file system"):
        remove(str(folder / "recordings"), [])


if __name__ == "__main__":
    _main(*sys.argv[1:])
