"""What is wrong with a cache's folder when it is opened: what killed processes left, what is gone, what is too old."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from dsnb.cache.index import Index
from dsnb.cache.process import is_gone
from dsnb.cache.versions import is_compatible

ASIDE: Final = "aside-"
"""What the names of folders begin with that are being written; the writer's name follows."""
RESULT: Final = "result-"
"""What the names of results' folders begin with."""
_FORGOTTEN: Final = 24 * 3600.0  # seconds after which a folder aside of a process that we cannot see is left behind
_FINGERPRINTS: Final = 100_000  # entries without results that are kept


def is_tidy(directory: Path, index: Index) -> bool:
    """Whether entries and folders agree, and nothing is left over."""
    if too_old(index) or index.leases_over() or _orphans(directory, index):
        return False
    return index.locations() <= set(os.listdir(directory))


def tidied(directory: Path, index: Index) -> list[str]:
    """Forget what is not there, drop what is too old, and give the folders to remove; inside of a `change()` only.

    No live process is between naming a folder and its entry meanwhile: that is one change too.
    """
    for version in too_old(index):
        index.drop_version(version)
    for number in index.leases_over():
        index.give_back(number)
    for location in index.locations():
        if (directory / location).is_dir():
            index.drop_if_unused(location)
        else:
            index.lose(location)
    index.drop_oldest_without_result(_FINGERPRINTS)
    return _orphans(directory, index)


def _orphans(directory: Path, index: Index) -> list[str]:
    known = index.locations()
    names = os.listdir(directory)
    return [name for name in names if _is_left(directory, name) or (is_result(name) and name not in known)]


def _is_left(directory: Path, name: str) -> bool:
    """Whether a name is that of a folder aside whose writer does not live any more."""
    if not name.startswith(ASIDE):
        return False
    gone = is_gone(name.removeprefix(ASIDE).rpartition("-")[0])
    if gone is None:
        with contextlib.suppress(FileNotFoundError):
            gone = abs(time.time() - (directory / name).stat().st_mtime) > _FORGOTTEN
    return bool(gone)


def too_old(index: Index) -> list[str]:
    """The versions whose entries cannot be read any more."""
    return [version for version in index.versions() if not is_compatible(version)]


def is_result(name: str) -> bool:
    """Whether a name is that of a result's folder."""
    return name.startswith(RESULT)


def weight(path: Path) -> int:
    """The bytes of a file, or of all files below a folder; what cannot be looked at weighs nothing."""
    try:
        if path.is_dir() and not path.is_symlink():
            return sum(map(weight, path.iterdir()))
        return path.lstat().st_size
    except OSError:
        return 0
