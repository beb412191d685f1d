"""Results of the training cache are for their owner alone: they may hold anything that a function returned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsnb.cache import LocalTrainingCache, ModelStorage, Resource


@pytest.fixture(params=[0o022, 0o000], ids=["umask 022", "umask 0"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def reachable(folder: Path) -> list[str]:
    """What others can open in a folder that they can look into."""
    found = []
    for path in folder.iterdir():
        mode = path.stat().st_mode
        if path.is_dir():
            found += [str(path)] * bool(mode & 0o077) + (reachable(path) if mode & 0o055 == 0o055 else [])
        elif mode & 0o066:
            found.append(str(path))
    return found


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "a folder that all may look into"])
def test_others_can_read_no_result_and_no_database(tmp_path: Path, umask: None, there: bool) -> None:
    folder = tmp_path / "cache"
    if there:
        folder.mkdir(mode=0o755)
    storage = ModelStorage(tmp_path / "model")
    resource = Resource(name="weights", output_fingerprint="f")
    with storage.write_to(resource) as directory:
        (directory / "w.bin").write_bytes(b"weights")
    with LocalTrainingCache(folder) as cache:
        cache.cache_output("key", resource, "output", storage)
        assert cache.get_cached_output_fingerprint("key") == "output"
        names = {path.name for path in folder.rglob("*")}
        assert {"w.bin", "cache.db"} <= names
        assert reachable(folder) == []
    assert reachable(folder) == []
    assert folder.stat().st_mode & 0o777 == (0o755 if there else 0o700)
