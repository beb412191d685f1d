from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsnb.cache import database, store, sweep
from dsnb.cache.sweep import is_tidy, tidied, weight
from dsnb.cache.training import LocalTrainingCache
from dsnb.errors import UnavailableError
from tests.cache.steps import get, known, put, results

Open = Callable[..., LocalTrainingCache]


def test_a_cache_in_use_is_tidy(open_cache: Open) -> None:
    cache = open_cache()
    for name in "ab":
        put(cache, name)
    with cache.store.aside(), cache.store.lent("output a"), cache.store.reading() as index:
        assert is_tidy(cache.directory, index)
        assert tidied(cache.directory, index) == []


def test_what_is_no_longer_there_is_forgotten_and_its_fingerprint_kept(open_cache: Open) -> None:
    cache = open_cache()
    put(cache, "a")
    (folder,) = results(cache)
    os.rename(folder, folder.with_name("elsewhere"))
    again = open_cache()
    assert again.used == 0
    assert known(again, "a")
    assert get(again, "a") is None


@pytest.mark.parametrize("age, stays", [(3600, True), (25 * 3600, False)])
def test_what_a_process_out_of_sight_left_aside_goes_after_a_day(open_cache: Open, age: float, stays: bool) -> None:
    cache = open_cache()
    foreign = cache.directory / "aside-0123456789ab-1-1-00000000"
    foreign.mkdir()
    os.utime(foreign, (time.time() - age,) * 2)
    open_cache()
    assert foreign.exists() is stays


def test_what_is_not_ours_is_left_alone_while_there_is_room(open_cache: Open, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    cache = open_cache()
    put(cache, "a")
    assert (tmp_path / "cache" / "notes.txt").read_text() == "mine"


def test_a_cache_opens_although_another_process_keeps_the_lock(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "HURRIED", 0.1)
    monkeypatch.setattr(database, "PATIENCE", 0.2)
    cache = open_cache()
    put(cache, "a")
    cache.close()
    orphan = cache.directory / "result-0123456789ab-00000000"
    orphan.mkdir()
    blocking = sqlite3.connect(cache.directory / cache.name, isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    assert get(open_cache(), "a")
    assert orphan.exists()
    monkeypatch.setattr(sweep, "is_compatible", lambda version: False)
    with pytest.raises(UnavailableError, match="locked"):  # but not with entries that must not be looked up
        open_cache()
    blocking.execute("ROLLBACK")
    blocking.close()
    assert not known(open_cache(), "a")
    assert not orphan.exists()


def test_weights(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(bytes(10))
    (tmp_path / "b").write_bytes(bytes(5))
    (tmp_path / "up").symlink_to(tmp_path)
    assert weight(tmp_path) >= 15
    assert weight(tmp_path / "folder") == 10
    assert weight(tmp_path / "none") == 0
