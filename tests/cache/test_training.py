"""The cases of the reference's own tests, by what they check, and the settings."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.cache.results.model_storage import ModelStorage, Resource
from dsnb.cache.results.training import Cacheable, LocalTrainingCache, TrainingCache
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from tests.cache.steps import MEBIBYTE, Output, get, known, put, results, storage, weight

Open = Callable[..., LocalTrainingCache]


class Failing(Output):
    """An output that cannot be written."""

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        (directory / "half").write_text("half of it")
        raise ValueError("this output cannot be written")


def change_type(cache: LocalTrainingCache, name: str) -> None:
    """Write the name of another class into the database."""
    cache.close()
    connection = sqlite3.connect(cache.directory / cache.name)
    with connection:
        connection.execute("UPDATE cache_entry SET result_type = ?", (name,))
    connection.close()


# ------------------------------------------------------------------------------------------- the cases of the reference


def test_a_cacheable_output_comes_back(open_cache: Open) -> None:
    cache = open_cache()
    output = put(cache, "a", 1000)
    assert known(cache, "a")
    restored = get(cache, "a")
    assert restored == output
    assert restored is not output


def test_what_was_never_stored_is_missed_by_both_look_ups(open_cache: Open) -> None:
    cache = open_cache()
    put(cache, "a")
    assert cache.get_cached_output_fingerprint("no such key") is None
    assert cache.get_cached_result("no such output", "step", storage(cache)) is None


def test_a_result_deleted_behind_its_back_is_none(open_cache: Open) -> None:
    cache = open_cache()
    put(cache, "a")
    (folder,) = results(cache)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    assert get(cache, "a") is None
    assert known(cache, "a")


def test_a_missing_location_is_created(open_cache: Open, tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "a" / "b" / "c")
    output = put(cache, "a")
    assert (tmp_path / "a" / "b" / "c" / "cache.db").is_file()
    assert get(cache, "a") == output


@pytest.mark.parametrize("output", [None, 7, "text", Ellipsis], ids=str)
def test_of_what_is_not_cacheable_the_fingerprint_is_kept(open_cache: Open, output: Any) -> None:
    cache = open_cache()
    cache.cache_output("key", output, "output", storage(cache))
    assert cache.get_cached_output_fingerprint("key") == "output"
    assert cache.get_cached_result("output", "step", storage(cache)) is None
    assert results(cache) == []


@pytest.mark.parametrize("second", ["output", "another output"])
def test_of_one_key_stored_twice_the_last_wins(open_cache: Open, second: str) -> None:
    cache = open_cache()
    cache.cache_output("key", Output("old"), "output", storage(cache))
    cache.cache_output("key", Output("new"), second, storage(cache))
    assert cache.get_cached_output_fingerprint("key") == second
    assert cache.get_cached_result(second, "step", storage(cache)) == Output("new")


def test_an_output_that_cannot_be_written_is_one_error_in_the_log(
    open_cache: Open, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache()
    with caplog.at_level(logging.DEBUG):
        cache.cache_output("key", Failing("a"), "output", storage(cache))
    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == ["ERROR"]
    assert cache.get_cached_output_fingerprint("key") == "output"
    assert cache.get_cached_result("output", "step", storage(cache)) is None
    assert results(cache) == []


@pytest.mark.parametrize("name", ["no_such_module:Output", "pathlib:Path"], ids=["no class", "not cacheable"])
def test_a_class_that_is_not_there_or_not_cacheable_is_none(open_cache: Open, name: str) -> None:
    cache = open_cache()
    put(cache, "a")
    change_type(cache, name)
    assert get(cache, "a") is None
    assert known(cache, "a")


def test_entries_of_incompatible_versions_vanish_with_their_files(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    monkeypatch.setattr(dsnb, "__version__", "0.0.9")
    put(cache, "old")
    cache.cache_output("key old and bare", None, "output old and bare", storage(cache))
    monkeypatch.setattr(dsnb, "__version__", "0.2.0.dev1")
    output = put(cache, "new")
    cache.close()
    again = open_cache()
    assert not known(again, "old")
    assert not known(again, "old and bare")
    assert get(again, "old") is None
    assert get(again, "new") == output
    again.close()
    database, result = sorted(again.directory.iterdir())
    assert database.name == "cache.db"
    assert result.is_dir()


def test_with_size_0_nothing_is_on_disk_and_nothing_is_found(
    open_cache: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSNB_MAX_CACHE_SIZE", "0")
    cache = open_cache()
    put(cache, "a")
    assert not known(cache, "a")
    assert get(cache, "a") is None
    assert list(tmp_path.iterdir()) == []


def test_of_a_result_larger_than_the_limit_the_fingerprint_is_kept(open_cache: Open) -> None:
    cache = open_cache(max_size=1)
    put(cache, "small", 1000)
    put(cache, "large", 2 * MEBIBYTE)
    assert known(cache, "large")
    assert get(cache, "large") is None
    assert get(cache, "small") == Output("small", 1000)
    assert len(results(cache)) == 1


def test_the_least_recently_used_make_room(open_cache: Open) -> None:
    cache = open_cache(max_size=5)
    put(cache, "first", 2 * MEBIBYTE)
    put(cache, "second", 10)
    put(cache, "third", 2 * MEBIBYTE)
    assert known(cache, "first")  # and is touched by that
    put(cache, "fourth", 2 * MEBIBYTE)
    assert [name for name in ("first", "second", "third", "fourth") if known(cache, name)] == ["first", "fourth"]
    assert [name for name in ("first", "second", "third", "fourth") if get(cache, name)] == ["first", "fourth"]
    assert weight(results(cache)) <= 5 * MEBIBYTE


def test_files_of_others_that_fill_the_cache_are_left_alone(open_cache: Open, tmp_path: Path) -> None:
    """Differs: the original purges them; more in test_deletions.py."""
    cache = open_cache(max_size=5)
    (tmp_path / "cache" / "some folder").mkdir()
    for stray in ("file", "some folder/file"):
        (tmp_path / "cache" / stray).write_bytes(bytes(5 * MEBIBYTE))
    output = put(cache, "a", 2 * MEBIBYTE)
    assert get(cache, "a") == output
    for stray in ("file", "some folder/file"):
        assert (tmp_path / "cache" / stray).stat().st_size == 5 * MEBIBYTE


def test_a_removed_database_is_an_error_and_leaves_no_folder(open_cache: Open) -> None:
    cache = open_cache()
    for path in cache.directory.iterdir():
        path.unlink()
    with pytest.raises(FailedPreconditionError, match="was removed while the cache was open"):
        put(cache, "a")
    assert results(cache) == []


def test_a_resource_comes_back_into_another_model_storage(open_cache: Open, tmp_path: Path) -> None:
    cache = open_cache()
    first, second = ModelStorage(tmp_path / "first"), ModelStorage(tmp_path / "second")
    resource = Resource(name="tokenizer", output_fingerprint="f1")
    with first.write_to(resource) as directory:
        (directory / "vocabulary").write_bytes(b"a\x00b")
        (directory / "more").mkdir()
        (directory / "more" / "empty").touch()
    cache.cache_output("key", resource, resource.fingerprint(), first)
    restored = cache.get_cached_result("f1", "tokenizer", second)
    assert restored == resource
    assert restored is not resource
    assert restored.fingerprint() == "f1"
    with second.read_from(restored) as directory:
        assert (directory / "vocabulary").read_bytes() == b"a\x00b"
        assert (directory / "more" / "empty").read_bytes() == b""
        assert directory != tmp_path / "first" / "tokenizer"


# ------------------------------------------------------------------------------------------------------------- settings


def test_settings_are_read_from_the_environment_when_the_object_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSNB_CACHE_DIRECTORY", str(tmp_path / "there"))
    monkeypatch.setenv("DSNB_CACHE_NAME", "entries.sqlite")
    monkeypatch.setenv("DSNB_MAX_CACHE_SIZE", "0.5")
    with LocalTrainingCache() as cache:
        monkeypatch.setenv("DSNB_CACHE_DIRECTORY", str(tmp_path / "elsewhere"))
        assert repr(cache) == f"LocalTrainingCache({str(tmp_path / 'there')!r}, name='entries.sqlite', max_size=0.5)"
        assert known(cache, "a") is False
        put(cache, "a", 400 << 10)
        assert get(cache, "a") == Output("a", 400 << 10)
        put(cache, "large", 600 << 10)
        assert get(cache, "large") is None
    assert (tmp_path / "there" / "entries.sqlite").is_file()
    assert not (tmp_path / "elsewhere").exists()


def test_arguments_go_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIRECTORY", "NAME"):
        monkeypatch.setenv(f"DSNB_CACHE_{name}", "x")
    monkeypatch.setenv("DSNB_MAX_CACHE_SIZE", "7")
    with LocalTrainingCache(tmp_path / "here", name="n.db", max_size=3) as cache:
        assert (cache.directory, cache.name, cache.max_size) == (tmp_path / "here", "n.db", 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_size": -1},
        {"max_size": 1e10},
        {"max_size": "much"},
        {"max_size": float("nan")},
        {"name": "a/b"},
        {"name": ".."},
    ],
    ids=str,
)
def test_settings_that_can_never_be_right_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        LocalTrainingCache(tmp_path / "cache", **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key, output", [(7, "a"), ("a", None), (b"a", "b")], ids=str)
def test_fingerprints_are_text(open_cache: Open, key: Any, output: Any) -> None:
    cache = open_cache()
    with pytest.raises(InvalidArgumentError, match=r"fingerprint(_key)?` must be a string, got \w+\n.*pass text"):
        cache.cache_output(key, Output("a"), output, storage(cache))


def test_a_smaller_limit_than_before_is_kept_from_the_next_result_on(open_cache: Open) -> None:
    for name in "abc":
        put(open_cache(max_size=5), name, MEBIBYTE)
    cache = open_cache(max_size=2)
    assert [name for name in "abc" if get(cache, name)] == ["a", "b", "c"]
    put(cache, "d", MEBIBYTE // 2)
    assert [name for name in "abcd" if get(cache, name)] == ["c", "d"]
    assert cache.used <= 2 * MEBIBYTE


def test_folders_that_hold_other_things_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("/", ".", "..", "~"):
        with pytest.raises(InvalidArgumentError, match="use a separate folder"):
            LocalTrainingCache(path)


def test_the_protocol_and_the_abstract_class_are_what_they_say() -> None:
    assert isinstance(Output("a"), Cacheable)
    assert isinstance(Resource(name="a"), Cacheable)
    assert not isinstance(7, Cacheable)
    assert issubclass(LocalTrainingCache, TrainingCache)
    with pytest.raises(TypeError):
        TrainingCache()  # type: ignore[abstract]
