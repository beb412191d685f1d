"""Nothing that dsnb did not write is ever removed: not to make room, not to tidy up, not through a link."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dsnb.cache.storage import ModelStorage
from dsnb.cache.training import LocalTrainingCache
from dsnb.errors import FailedPreconditionError
from tests.cache.steps import ENTRY_FILES, MEBIBYTE, Output, get, known, put, results, storage

Open = Callable[..., LocalTrainingCache]

# --------------------------------------------------------------------------------------------------- the training cache


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def own(cache: LocalTrainingCache) -> set[Path]:
    """What the cache itself has in its folder."""
    assert cache.store is not None
    with cache.store.reading() as index:
        folders = [cache.directory / name for name in index.locations()]
    files = [cache.directory / name for name in ENTRY_FILES]
    return {*files, *folders, *(path for folder in folders for path in folder.rglob("*"))}


def test_what_others_put_into_the_folder_is_neither_counted_nor_removed(open_cache: Open, tmp_path: Path) -> None:
    cache = open_cache(max_size=5)
    (tmp_path / "cache" / "thesis").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("elsewhere")
    for name in ("thesis/chapter", "notes.txt", "result-notes", "aside-0123456789ab-1-1-00000000", ".hidden"):
        (tmp_path / "cache" / name).write_bytes(bytes(3 * MEBIBYTE))
    (tmp_path / "cache" / "result-00ff").mkdir()  # as a result is called, and none of this cache's
    (tmp_path / "cache" / "link").symlink_to(tmp_path / "precious")
    before = tree(tmp_path / "cache") - own(cache)
    for _ in range(2):
        for name in "abcd":
            output = put(cache, name, 2 * MEBIBYTE)
            assert get(cache, name) == output
        assert [name for name in "abcd" if known(cache, name)] == ["c", "d"], "what is not the cache's takes no room"
        assert cache.used == 4 * MEBIBYTE + len("cd")
        assert tree(tmp_path / "cache") - own(cache) == before
        cache = open_cache(max_size=5)
    assert (tmp_path / "precious" / "file").read_text() == "elsewhere"


@pytest.mark.parametrize("stray", ["notes.txt", ".hidden", "result-00ff", "photos/1.jpg", "other.db"])
def test_a_folder_that_is_not_empty_and_no_cache_is_refused_and_left_as_it_is(tmp_path: Path, stray: str) -> None:
    path = tmp_path / "mine" / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(
        FailedPreconditionError, match=f"is no cache: it holds {path.relative_to(tmp_path / 'mine').parts[0]!r}"
    ):
        LocalTrainingCache(tmp_path / "mine", max_size=0.001)
    assert tree(tmp_path) == before
    assert path.read_text() == "mine"


def test_a_folder_with_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    mine = sqlite3.connect(tmp_path / "cache.db")
    with mine:
        mine.execute("CREATE TABLE notes (text TEXT)")
    mine.close()
    before = (tmp_path / "cache.db").read_bytes()
    with pytest.raises(FailedPreconditionError, match="a database of another program"):
        LocalTrainingCache(tmp_path)
    assert (tmp_path / "cache.db").read_bytes() == before


def test_a_database_that_names_folders_elsewhere_makes_none_be_removed(open_cache: Open, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "cache").mkdir()
    cache = open_cache()
    put(cache, "a")
    (result,) = results(cache)
    cache.close()
    connection = sqlite3.connect(cache.directory / cache.name)
    with connection:
        for number, bad in enumerate(["../precious", str(tmp_path / "precious"), ".", "", "result-x/../../precious"]):
            connection.execute("INSERT INTO folder VALUES (?, '', 0.0)", (bad,))
            connection.execute("INSERT INTO result VALUES (?, ?, 1, 0.0, -1.0, 0)", (bad + "/", str(number)))
    connection.close()
    again = open_cache()
    for name in "bcd":
        put(again, name)
    assert (tmp_path / "precious" / "file").exists()
    assert result.is_dir()
    assert get(again, "a") == Output("a")


def test_a_link_in_the_place_of_a_result_is_not_followed(open_cache: Open, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    cache = open_cache()
    put(cache, "a")
    (result,) = results(cache)
    result.rename(tmp_path / "aside")
    result.symlink_to(tmp_path / "precious", target_is_directory=True)
    assert get(cache, "a") is None  # it is not what was written
    open_cache()
    assert (tmp_path / "precious" / "file").exists()


class Linking(Output):
    """An output with a link to a folder of the user's in it."""

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        super().to_cache(directory, model_storage)
        (directory / "link").symlink_to(self.value, target_is_directory=True)


def test_what_links_in_a_result_lead_to_stays_when_the_result_goes(open_cache: Open, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    cache = open_cache()
    cache.cache_output("key", Linking(str(tmp_path / "precious")), "output", storage(cache))
    assert len(results(cache)) == 1
    cache.cache_output("key", None, "nothing", storage(cache))
    assert results(cache) == []
    assert (tmp_path / "precious" / "file").exists()


def test_a_folder_holds_one_cache(open_cache: Open, tmp_path: Path) -> None:
    put(open_cache(), "a")
    with pytest.raises(FailedPreconditionError, match=r"is no cache: it holds 'cache\.db'"):
        open_cache(name="second.db")
