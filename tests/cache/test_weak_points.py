"""The weak points of the original, each as a test that it would fail; docs/training_cache.md lists them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsnb.cache.results.model_storage import ModelStorage
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.storage.failpoints import When, failpoint_hook
from tests.cache.steps import MEBIBYTE, Output, get, known, put, results, storage, weight
from tests.support.processes import python_process

Open = Callable[..., LocalTrainingCache]


class Empty(list[int]):
    """A result that is false."""

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        (directory / "nothing").touch()

    @classmethod
    def from_cache(cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str) -> Any:
        return cls()


class Held(Output):
    """An output that takes as long to load as the test wants."""

    loading = threading.Event()
    go_on = threading.Event()

    @classmethod
    def from_cache(cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str) -> Any:
        cls.loading.set()
        assert cls.go_on.wait(60)
        return super().from_cache(node_name, directory, model_storage, output_fingerprint)


def test_1_orphans_cost_no_valid_entry(open_cache: Open) -> None:
    cache = open_cache(max_size=5)
    for name in "ab":
        put(cache, name, 2 * MEBIBYTE)
    orphan = cache.directory / "result-0123456789abcdef"
    orphan.mkdir()
    (orphan / "file").write_bytes(bytes(4 * MEBIBYTE))
    with (
        cache.store.reading() as index,
        index.database.transaction(),
    ):  # as one leaves it who dies in front of the entry
        index.reserve_folder(orphan.name)
        index.mark_folder_unused(orphan.name)
    cache.close()
    again = open_cache(max_size=5)
    assert len(results(again)) == 2
    put(again, "c", MEBIBYTE // 2)
    assert [name for name in "abc" if get(again, name)] == ["a", "b", "c"]


def test_1_the_folder_of_a_replaced_result_goes(open_cache: Open) -> None:
    cache = open_cache()
    for value in ("old", "new"):
        cache.cache_output("key", Output(value, 1000), "output", storage(cache))
    assert len(results(cache)) == 1
    assert cache.used == weight(results(cache))


def test_2_the_size_is_counted_and_not_walked_for(open_cache: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(max_size=1)
    looked: list[Any] = []
    for name in ("scandir", "listdir"):
        really = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, really=really: looked.append(path) or really(path))

    def looks(name: str) -> int:
        looked.clear()
        put(cache, name, 40 << 10)
        return len(looked)

    alone, second = looks("a"), looks("b")
    for number in range(40):  # the last of them make room
        put(cache, str(number), 40 << 10)
    assert alone == second
    # Beyond what it takes to read the new folder, only the folder that goes is looked through to remove it.
    assert looks("c") <= alone + 2
    assert cache.used == weight(results(cache)) <= MEBIBYTE


def test_3_reading_a_result_makes_it_recent(open_cache: Open) -> None:
    cache = open_cache(max_size=5)
    put(cache, "a", 2 * MEBIBYTE)
    put(cache, "b", 2 * MEBIBYTE)
    assert get(cache, "a")
    put(cache, "c", 2 * MEBIBYTE)
    assert [name for name in "abc" if known(cache, name)] == ["a", "c"]


def test_4_what_is_being_read_stays_while_another_cache_makes_room(open_cache: Open) -> None:
    reading, writing = open_cache(max_size=5), open_cache(max_size=5)
    Held.loading.clear()
    Held.go_on.clear()
    reading.cache_output("key a", Held("a", 3 * MEBIBYTE), "output a", storage(reading))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(get(reading, "a")))
    thread.start()
    try:
        assert Held.loading.wait(60)
        put(writing, "b", 3 * MEBIBYTE)  # finds no room, for the only victim is being read
        assert known(writing, "b")
        assert get(writing, "b") is None
    finally:
        Held.go_on.set()
        thread.join(60)
    assert found == [Output("a", 3 * MEBIBYTE)]
    put(writing, "b", 3 * MEBIBYTE)
    assert get(writing, "b")
    assert get(writing, "a") is None


def test_4_the_lease_of_a_killed_reader_falls_with_it(open_cache: Open) -> None:
    cache = open_cache(max_size=5)
    put(cache, "a", 3 * MEBIBYTE)
    code = f"""
from dsnb.cache.results.training import LocalTrainingCache
cache = LocalTrainingCache({str(cache.directory)!r}, max_size=5)
with cache.store.leased("output a") as lent:
    print("READY", lent is not None)
    input()
"""
    with python_process(code) as reader:
        assert reader.wait_for_line("READY") == "READY True"
        put(cache, "b", 3 * MEBIBYTE)
        assert get(cache, "b") is None
        reader.kill()
        put(cache, "b", 3 * MEBIBYTE)
    assert get(cache, "b")
    assert get(cache, "a") is None


def test_5_a_folder_is_noted_before_it_is_made_and_synced_before_an_entry_names_it(open_cache: Open) -> None:
    cache = open_cache()
    passed: list[str] = []
    with failpoint_hook(lambda name, when: passed.append(f"{name} {when}")):
        put(cache, "a")
    steps = list(dict.fromkeys(name.rpartition(" ")[0] for name in passed))
    assert steps == ["entry commit", "result make", "result write", "result sync", "result folder"]
    assert passed[-2:] == ["entry commit before", "entry commit after"]
    assert passed.count("result sync after") == 4  # two files, two folders


@pytest.mark.parametrize("damage", ["flipped", "cut", "more", "another file"])
def test_5_a_damaged_result_is_never_served(open_cache: Open, damage: str) -> None:
    cache = open_cache()
    output = put(cache, "a", 1000)
    (folder,) = results(cache)
    filling = folder / "folder" / "filling"
    content = filling.read_bytes()
    if damage == "another file":
        (folder / "extra").touch()
    else:
        bad = {"flipped": b"X" + content[1:], "cut": content[:-1], "more": content + b"a"}
        filling.write_bytes(bad[damage])
    assert get(cache, "a") is None
    assert known(cache, "a")
    assert results(cache) == []
    put(cache, "a", 1000)
    assert get(cache, "a") == output


def test_6_another_working_directory_is_the_same_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_cache: Open
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path / "one")
    with LocalTrainingCache() as cache:
        output = put(cache, "a")
    monkeypatch.chdir(tmp_path / "two")
    with LocalTrainingCache() as cache:
        assert get(cache, "a") == output
    given = open_cache(Path("given"))
    monkeypatch.chdir(tmp_path / "one")
    put(given, "b")
    assert get(given, "b")
    assert results(given)[0].parent == tmp_path / "two" / "given"


def test_6_a_cache_may_be_moved(open_cache: Open, tmp_path: Path) -> None:
    cache = open_cache()
    output = put(cache, "a")
    cache.close()
    shutil.move(cache.directory, tmp_path / "moved")
    assert get(open_cache(tmp_path / "moved"), "a") == output


def test_8_the_database_makes_no_module_be_imported(
    open_cache: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chosen_by_the_database.py").write_text(
        "class Output:\n"
        "    def to_cache(self, directory, model_storage): ...\n"
        "    @classmethod\n"
        "    def from_cache(cls, node_name, directory, model_storage, output_fingerprint): return 'run'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cache = open_cache()
    put(cache, "a")
    cache.close()
    connection = sqlite3.connect(cache.directory / cache.name)
    with connection:
        connection.execute("UPDATE cache_entry SET result_type = 'chosen_by_the_database:Output'")
    connection.close()
    assert get(cache, "a") is None
    assert "chosen_by_the_database" not in sys.modules


def test_9_a_false_result_is_a_result(open_cache: Open) -> None:
    cache = open_cache()
    cache.cache_output("key", Empty(), "output", storage(cache))
    found = cache.get_cached_result("output", "step", storage(cache))
    assert type(found) is Empty
    assert not found


@pytest.mark.slow
def test_10_what_took_long_stays_longer_than_what_did_not(open_cache: Open) -> None:
    cache = open_cache(max_size=5)
    put(cache, "ten hours", 2 * MEBIBYTE, seconds=36_000.0)
    for number in range(10):
        put(cache, f"a second {number}", 2 * MEBIBYTE, seconds=1.0)
    assert get(cache, "ten hours")
    assert [number for number in range(10) if known(cache, f"a second {number}")] == [9]


@pytest.mark.slow
def test_10_but_not_for_ever(open_cache: Open) -> None:
    cache = open_cache(max_size=5)
    put(cache, "ten seconds", 2 * MEBIBYTE, seconds=10.0)
    for number in range(30):
        put(cache, f"a second {number}", 2 * MEBIBYTE, seconds=1.0)
    assert not known(cache, "ten seconds")


def test_11_making_room_loses_no_fingerprint_that_frees_nothing(open_cache: Open) -> None:
    cache = open_cache(max_size=5)
    cache.cache_output("bare", None, "output of it", storage(cache))
    for name in "abcd":
        put(cache, name, 2 * MEBIBYTE)
    assert cache.get_cached_output_fingerprint("bare") == "output of it"


def test_equal_results_are_one_folder_that_goes_with_its_last_entry(open_cache: Open) -> None:
    cache = open_cache()
    for key in "ab":
        cache.cache_output(key, Output("same", 1000), f"output {key}", storage(cache))
    assert len(results(cache)) == 1
    assert cache.used == weight(results(cache))
    cache.cache_output("a", None, "nothing", storage(cache))
    assert cache.get_cached_result("output b", "step", storage(cache)) == Output("same", 1000)
    cache.cache_output("b", None, "nothing", storage(cache))
    assert results(cache) == []
    assert cache.used == 0


class Interrupted(Output):
    """An output at whose writing the user presses stop."""

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        super().to_cache(directory, model_storage)
        raise KeyboardInterrupt


def test_stop_while_a_result_is_written_leaves_nothing_and_holds_nothing(open_cache: Open) -> None:
    cache = open_cache()
    with pytest.raises(KeyboardInterrupt):
        cache.cache_output("key", Interrupted("a", 1000), "output", storage(cache))
    assert results(cache) == []
    assert cache.get_cached_output_fingerprint("key") is None
    put(cache, "b")
    assert get(cache, "b")


def test_stop_right_after_the_commit_leaves_the_result_whole(open_cache: Open) -> None:
    cache = open_cache()
    commits: list[str] = []

    def stop(name: str, when: When) -> None:
        commits.extend([name] if (name, when) == ("entry commit", "after") else [])
        if len(commits) == 2:  # the first one reserves the folder
            commits.append("stopped")
            raise KeyboardInterrupt

    with failpoint_hook(stop), pytest.raises(KeyboardInterrupt):
        put(cache, "a", 1000)
    assert known(cache, "a")
    assert get(cache, "a") == Output("a", 1000)


def test_13_a_result_is_written_where_it_stays_without_a_temporary_folder(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    moved: list[Any] = []
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    for module, name in ((os, "rename"), (os, "replace"), (shutil, "move")):
        monkeypatch.setattr(module, name, lambda *paths: moved.append(paths))
    output = put(cache, "a")
    assert get(cache, "a") == output
    assert moved == []
