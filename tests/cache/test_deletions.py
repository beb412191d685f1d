"""Nothing that dsnb did not write is ever removed: not to make room, not to tidy up, not through a link."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsnb.cache.recordings.catalogue import entries, remove
from dsnb.cache.results.model_storage import ModelStorage
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.errors import CacheWarning, FailedPreconditionError
from dsnb.pipeline.dataset import Dataset
from dsnb.storage.process_identity import this_process
from dsnb.wire import discovery
from tests.cache.steps import ENTRY_FILES, MEBIBYTE, Output, get, known, put, results, storage
from tests.support.requires import require_module

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
        FailedPreconditionError, match=f"is not a cache: it contains {path.relative_to(tmp_path / 'mine').parts[0]!r}"
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
    with pytest.raises(FailedPreconditionError, match=r"is not a cache: it contains 'cache\.db'"):
        open_cache(name="second.db")


# ----------------------------------------------------------------------------------------------------------- recordings


def recorded(where: Path | str, factor: int, *, limit: int | None = None) -> list[int]:
    """A pass over a pipeline of 80 kB that is recorded."""
    rows = Dataset.range(100).map(lambda x: np.full(100, x * factor)).cache(where, limit_bytes=limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)  # that the pipeline changed, and that it is too large
        return [int(row[0]) for row in rows]


STRAYS = [
    "photos/2024/1.jpg",  # a folder of numbers, as a pipeline's is
    "0/notes.txt",
    "f" * 32 + "/000001/notes.txt",  # a folder as a pipeline's is called
    ".trash-old/file",
    ".trash-" + "0" * 16 + "/file",
    ".aside-notes",
    ".aside-0123456789ab-x",
    "used",
]


def strays(where: Path) -> dict[Path, str]:
    """Files of the user's that are called much as a cache's are, long ago."""
    for name in STRAYS:
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (time.time() - 1e6,) * 2)
    return {where / name: "mine" for name in STRAYS}


def there(paths: dict[Path, str]) -> dict[Path, str]:
    return {path: path.read_text() for path in paths if path.exists()}


def test_no_recording_makes_room_for_itself_by_removing_what_dsnb_did_not_write(tmp_path: Path) -> None:
    mine = strays(tmp_path)
    for factor in (1, 2, 3):
        assert recorded(tmp_path, factor, limit=150_000) == [x * factor for x in range(100)]
    assert there(mine) == mine
    assert [entry.elements for entry in entries(str(tmp_path)) if entry.key != "f" * 32] == [100], (
        "recordings made room"
    )


def test_files_of_others_use_nothing_of_a_limit(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(MEBIBYTE))
    assert recorded(tmp_path, 1, limit=150_000) == list(range(100))
    assert [entry.state for entry in entries(str(tmp_path))] == ["complete"]


def test_removing_all_recordings_removes_nothing_else(tmp_path: Path) -> None:
    mine = strays(tmp_path)
    recorded(tmp_path, 1)
    with pytest.raises(FailedPreconditionError, match="which dsnb did not write") as refused:
        remove(str(tmp_path), [])  # one of them is called as a pipeline's folder is
    assert "f" * 32 in refused.value.what
    assert there(mine) == mine
    (tmp_path / ("f" * 32)).rename(tmp_path / "kept")
    remove(str(tmp_path), [])
    assert entries(str(tmp_path)) == []
    assert (tmp_path / "kept" / "000001" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "stray", ["notes.txt", "000001/notes.txt", "000001/seg/mine.seg", "000001/log/notes", "more/x"]
)
def test_a_recording_with_files_of_the_user_in_it_is_not_removed(tmp_path: Path, stray: str) -> None:
    recorded(tmp_path, 1)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / stray).parent.mkdir(exist_ok=True, parents=True)
    (folder / stray).write_text("mine")
    with pytest.raises(FailedPreconditionError, match=f"holds '{stray.removesuffix('/x')}"):
        remove(str(tmp_path), [])
    recorded(tmp_path, 2, limit=1 << 20)
    assert (folder / stray).read_text() == "mine"
    assert recorded(tmp_path, 1) == list(range(100))


@pytest.mark.parametrize("stray", ["photos/2024/1.jpg", "0/notes.txt", "notes.txt"])
def test_removing_all_recordings_of_a_remote_place_removes_nothing_else(tmp_path: Path, stray: str) -> None:
    require_module("fsspec")
    where = f"file://{tmp_path / 'remote'}"
    (tmp_path / "remote" / stray).parent.mkdir(parents=True)
    (tmp_path / "remote" / stray).write_text("mine")
    recorded(where, 1)
    assert [entry.elements for entry in entries(where)] == [100]
    remove(where, [])
    assert [path.relative_to(tmp_path / "remote") for path in (tmp_path / "remote").rglob("*.*")] == [Path(stray)]
    assert (tmp_path / "remote" / stray).read_text() == "mine"


def test_a_remote_recording_with_files_of_the_user_in_it_is_not_removed(tmp_path: Path) -> None:
    require_module("fsspec")
    where = f"file://{tmp_path / 'remote'}"
    recorded(where, 1)
    (number,) = (tmp_path / "remote").glob("*/000001")
    (number / "data" / "mine.bin").write_text("mine")
    with pytest.raises(FailedPreconditionError, match=r"holds '000001/data/mine\.bin', which dsnb did not write"):
        remove(where, [])
    assert recorded(where, 1) == list(range(100))
    assert (number / "data" / "mine.bin").read_text() == "mine"


def test_a_link_among_recordings_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "000001").mkdir(parents=True)
    (precious / "000001" / "manifest").write_text("mine")
    where = tmp_path / "cache"
    recorded(where, 1)
    (where / ("e" * 32)).symlink_to(precious, target_is_directory=True)
    (where / (".trash-" + "e" * 16)).symlink_to(precious, target_is_directory=True)
    recorded(where, 2, limit=50_000)
    remove(str(where), [])
    assert (precious / "000001" / "manifest").read_text() == "mine"


def test_an_older_recording_leaves_what_others_put_into_it(tmp_path: Path) -> None:
    recorded(tmp_path, 1)
    (first,) = tmp_path.glob("*/000001")
    (first / "notes.txt").write_text("mine")
    first.rename(first.with_name("000000"))
    (first.parent / "000001").mkdir()
    assert recorded(tmp_path, 1) == list(range(100))
    assert [path.name for path in (first.parent / "000000").iterdir()] == ["notes.txt"]


def test_what_dead_processes_left_aside_is_known_by_its_whole_name(tmp_path: Path) -> None:
    recorded(tmp_path, 1)
    place, _, started = this_process().unique_id().split("-")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    left = folder / f".aside-{place}-{2**22 + 1}-{started}-0123abcd"
    left.touch()
    mine = strays(tmp_path)
    recorded(tmp_path, 1)
    assert not left.exists()
    assert there(mine) == mine


# ----------------------------------------------------------------------------------------------------- connection files


def test_the_folder_of_connection_files_keeps_what_others_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSNB_RUNTIME_DIR", str(tmp_path))
    mine = {tmp_path / name: "{}" for name in (".notes.tmp", ".x.tmp", "other.json", "notes.tmp")}
    for path, text in mine.items():
        path.write_text(text)
    (tmp_path / ".dsnb-connection-0a1b2c3d.tmp").touch()  # as one leaves it who dies while he writes
    discovery.remove_stale()
    assert there(mine) == mine
    assert not (tmp_path / ".dsnb-connection-0a1b2c3d.tmp").exists()
