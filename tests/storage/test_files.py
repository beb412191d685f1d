from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.errors import PermissionDeniedError, ResourceExhaustedError, UnavailableError
from dsnb.storage import files
from dsnb.storage.failpoints import FAILPOINTS, Failpoint, When, failpoint_hook
from dsnb.storage.process_identity import this_process

STEPS = files.WriteFailpoints("test of files")
REMOVE = Failpoint("test of files remove")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_replace_writes_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "it"
    files.replace(str(path), b"old", STEPS)
    files.replace(str(path), b"new", STEPS)
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["it"]


def test_what_nothing_rests_on_is_replaced_too_and_leaves_nothing_when_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "it"
    files.replace_without_sync(str(path), b"old", REMOVE)
    files.replace_without_sync(str(path), b"new", REMOVE)
    assert path.read_bytes() == b"new"
    with failpoint_hook(_refuse), pytest.raises(OSError, match="refused"):
        files.replace_without_sync(str(path), b"newer", REMOVE)
    assert names(tmp_path) == ["it"]


def _refuse(name: str, when: When) -> None:
    raise OSError("refused")


def test_the_first_to_create_a_file_wins(tmp_path: Path) -> None:
    path = tmp_path / "it"
    assert files.create(str(path), b"first", STEPS) is True
    assert files.create(str(path), b"second", STEPS) is False
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["it"]


def test_create_works_on_file_systems_without_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no unnamed files here")
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    assert files.create(str(tmp_path / "it"), b"first", STEPS)
    assert not files.create(str(tmp_path / "it"), b"second", STEPS)
    assert (tmp_path / "it").read_bytes() == b"first"
    assert names(tmp_path) == ["it"]


@pytest.mark.parametrize("call", [files.create, files.replace])
def test_no_folder_no_file(tmp_path: Path, call: Any) -> None:
    with pytest.raises(FileNotFoundError):
        call(str(tmp_path / "none" / "it"), b"data", STEPS)


@pytest.mark.parametrize("call", [files.create, files.replace])
@pytest.mark.parametrize("step", ["write", "sync", "name"])
def test_a_step_that_fails_leaves_nothing(tmp_path: Path, call: Any, step: str) -> None:
    def fail(name: str, when: When) -> None:
        if (name, when) == (f"test of files {step}", "before"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with failpoint_hook(fail), pytest.raises(OSError, match="No space"):
        call(str(tmp_path / "it"), b"data", STEPS)
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", [files.create, files.replace])
def test_the_data_are_synced_before_the_name_and_the_folder_after_it(tmp_path: Path, call: Any) -> None:
    passed: list[str] = []
    with failpoint_hook(lambda name, when: passed.append(f"{name.rpartition(' ')[2]} {when}")):
        call(str(tmp_path / "it"), b"data", STEPS)
    steps = ["write", "sync", "name", "folder"]
    assert passed == [f"{step} {when}" for step in steps for when in ("before", "after")]


def test_buffers_of_any_kind_are_written_in_order(tmp_path: Path) -> None:
    parts = [b"ab", np.arange(3), np.ones((2, 2), np.float32), b"", memoryview(b"cd"), *[b"x"] * 3000]
    with open(tmp_path / "it", "wb", buffering=0) as file:
        total = files.write_all(file.fileno(), parts)
    wanted = b"".join(np.asarray(part).tobytes() if isinstance(part, np.ndarray) else bytes(part) for part in parts)
    assert (tmp_path / "it").read_bytes() == wanted
    assert total == len(wanted)


def test_what_a_short_write_left_is_written_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: really(fd, [memoryview(b"".join(parts))[:3]]))
    with open(tmp_path / "it", "wb", buffering=0) as file:
        files.write_all(file.fileno(), [b"abcd", b"e", b"fghijk"])
    assert (tmp_path / "it").read_bytes() == b"abcdefghijk"


def test_folders_above_are_made_too(tmp_path: Path) -> None:
    files.make_folder(str(tmp_path / "a" / "b"), REMOVE)
    files.make_folder(str(tmp_path / "a" / "b"), REMOVE)
    assert (tmp_path / "a" / "b").is_dir()


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"")
    assert files.remove(str(tmp_path / "it"), REMOVE) is True
    assert files.remove(str(tmp_path / "it"), REMOVE) is False


def test_what_a_dead_process_left_aside_is_swept_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    mine = Path(files.temporary_path_in(str(tmp_path)))
    place, pid, _ = this_process().unique_id().split("-")
    dead = tmp_path / f".aside-{place}-{pid}-1-00000000"
    elsewhere = tmp_path / ".aside-0123456789ab-1-1-00000000"
    forgotten = tmp_path / ".aside-0123456789ab-1-1-00000001"
    for path in (mine, dead, elsewhere, forgotten, tmp_path / "other"):
        path.write_bytes(b"")
    os.utime(forgotten, (1, 1))
    assert files.remove_stale_temporary_files(str(tmp_path), REMOVE) == 2
    assert names(tmp_path) == sorted([mine.name, elsewhere.name, "other"])


def test_reading_what_is_not_there_gives_none(tmp_path: Path) -> None:
    assert files.read(str(tmp_path / "it")) is None
    assert list(files.names_in(str(tmp_path / "folder"))) == []


@pytest.mark.parametrize(
    "number,cls",
    [
        (errno.ENOSPC, ResourceExhaustedError),
        (errno.EDQUOT, ResourceExhaustedError),
        (errno.EROFS, PermissionDeniedError),
        (errno.EACCES, PermissionDeniedError),
        (errno.EIO, UnavailableError),
    ],
)
def test_what_the_system_refused_is_a_page(number: int, cls: type[Exception]) -> None:
    error = files.translate_os_error(OSError(number, os.strerror(number)), "recording to /data", "the pass goes on")
    assert type(error) is cls
    assert error.what == f"recording to /data failed: {os.strerror(number)}"
    assert error.did
    assert error.hint


def test_points_are_called_what_they_name() -> None:
    assert all(point.name == name for name, point in FAILPOINTS.items())
