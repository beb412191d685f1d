from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsnb.cache.results.folder_hash import hash_folder
from dsnb.errors import InvalidArgumentError


def made(folder: Path) -> Path:
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "a").write_bytes(b"12345")
    (folder / "sub" / "b").write_bytes(b"")
    (folder / "link").symlink_to("a")
    return folder


def test_equal_folders_have_equal_content(tmp_path: Path) -> None:
    first, second = hash_folder(str(made(tmp_path / "x"))), hash_folder(str(made(tmp_path / "y")))
    assert first == second
    assert first.nbytes == 5 + len("a")
    assert len(first.digest) == 32


CHANGES: dict[str, Callable[[Path], object]] = {
    "byte": lambda folder: (folder / "a").write_bytes(b"12346"),
    "length": lambda folder: (folder / "a").write_bytes(b"1234"),
    "name": lambda folder: (folder / "a").rename(folder / "A"),
    "place": lambda folder: (folder / "a").rename(folder / "sub" / "a"),
    "new folder": lambda folder: (folder / "new").mkdir(),
    "lost folder": lambda folder: (folder / "sub" / "empty").rmdir(),
    "file for a folder": lambda folder: ((folder / "sub" / "empty").rmdir(), (folder / "sub" / "empty").touch()),
    "link": lambda folder: ((folder / "link").unlink(), (folder / "link").symlink_to("sub")),
    "file for a link": lambda folder: ((folder / "link").unlink(), (folder / "link").write_bytes(b"a")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_changes_the_digest(tmp_path: Path, change: str) -> None:
    folder = made(tmp_path / "x")
    before = hash_folder(str(folder)).digest
    CHANGES[change](folder)
    assert hash_folder(str(folder)).digest != before


def test_each_file_and_folder_is_visited(tmp_path: Path) -> None:
    seen: list[str] = []
    hash_folder(str(made(tmp_path / "x")), lambda descriptor: seen.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    names = [os.path.relpath(path, tmp_path) for path in seen]
    assert sorted(names) == ["x", "x/a", "x/sub", "x/sub/b", "x/sub/empty"]
    assert names[-1] == "x"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgumentError, match="is no file, folder or link"):
        hash_folder(str(tmp_path))
