from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsnb.cache.results import cleanup, store
from dsnb.cache.results.cleanup import clean_up, is_clean
from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.errors import UnavailableError
from tests.cache.steps import get, known, put, results

Open = Callable[..., LocalTrainingCache]


def test_a_cache_in_use_is_tidy(open_cache: Open) -> None:
    cache = open_cache()
    for name in "ab":
        put(cache, name)
    with cache.store.new_folder(), cache.store.leased("output a"), cache.store.reading() as index:
        assert is_clean(cache.directory, index)
        with index.database.transaction():
            clean_up(cache.directory, index)
        assert is_clean(cache.directory, index)
        assert index.unused_folders() == []


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
def test_what_a_process_out_of_sight_was_writing_goes_after_a_day(open_cache: Open, age: float, stays: bool) -> None:
    cache = open_cache()
    foreign = reserved(cache, "result-00ff", holder="0123456789ab-1-1", since=time.time() - age)
    open_cache()
    assert foreign.exists() is stays


def reserved(cache: LocalTrainingCache, location: str, *, holder: str, since: float) -> Path:
    """A folder that a process was filling."""
    with cache.store.reading() as index, index.database.transaction():
        index.database.execute("INSERT INTO folder VALUES (?, ?, ?)", location, holder, since)
    (cache.directory / location).mkdir()
    return cache.directory / location


def test_a_cache_opens_although_another_process_keeps_the_lock(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHORT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(TRAINING_CACHE, "busy_timeout_s", 0.2)
    cache = open_cache()
    put(cache, "a")
    orphan = reserved(cache, "result-00ff", holder="", since=0.0)
    cache.close()
    blocking = sqlite3.connect(cache.directory / cache.name, isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    assert get(open_cache(), "a")
    assert orphan.exists()
    monkeypatch.setattr(cleanup, "is_compatible", lambda version: False)
    with pytest.raises(UnavailableError, match="locked"):  # but not with entries that must not be looked up
        open_cache()
    blocking.execute("ROLLBACK")
    blocking.close()
    assert not known(open_cache(), "a")
    assert not orphan.exists()
