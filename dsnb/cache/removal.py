"""Removes recordings from a directory, and nothing else: what dsnb did not write stays, wherever it lies.

A file is dsnb's if it has the name and the place of one, below the folder of a pipeline's key. Files are removed one by
one, through descriptors of their folders, so that no link is followed, whoever changes the tree meanwhile; folders go
when nothing is left in them.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from dsnb.cache.files import TEMPORARY_NAME

_KEY: Final = re.compile(r"[0-9a-f]{32}")
_TRASH: Final = re.compile(r"\.trash-[0-9a-f]{16}")
_FOLDER: Final = re.compile(r"\d{6,}(/(log|seg|beat))?")
SEGMENT_NAME: Final = r"[0-9a-f]{12}-\d+-\d*-[0-9a-f]{8}\.seg"
_FILE: Final = re.compile(
    rf"(lock|used|expires|about\.json|{TEMPORARY_NAME})"
    rf"|\d{{6,}}/(manifest|{TEMPORARY_NAME}|log/(\d{{8,}}|{TEMPORARY_NAME})|seg/{SEGMENT_NAME}|beat/(\d+|asked|{TEMPORARY_NAME}))"
)


def is_key(name: str) -> bool:
    """Whether a folder may be called so that holds the recordings of a pipeline."""
    return _KEY.fullmatch(name) is not None


def is_trash(name: str) -> bool:
    """Whether a folder may be called so that is being removed."""
    return _TRASH.fullmatch(name) is not None


def foreign_files(folder: str) -> list[str]:
    """What lies in the folder of a pipeline and was not written by dsnb, as relative paths."""
    return sorted(path for path, ours, _, _ in _entries(folder) if not ours)


def size_of(folder: str) -> int:
    """The bytes of the files that dsnb wrote into the folder of a pipeline."""
    return sum(nbytes for _, ours, _, nbytes in _entries(folder) if ours)


def remove_recordings(folder: str, below: str = "") -> bool:
    """Remove what dsnb wrote into the folder of a pipeline.

    Args:
        folder: The folder.
        below: Only what is in this folder of it.

    Returns:
        Whether all of it is gone.
    """
    start = os.path.join(folder, below) if below else folder
    for path, ours, descriptor, _ in _entries(folder, below):
        if ours:
            with contextlib.suppress(OSError):
                os.unlink(os.path.basename(path), dir_fd=descriptor)
    for path in reversed([path for path, _, _, _ in _walk(start)]):
        if path == start or _FOLDER.fullmatch(os.path.relpath(path, folder)):
            with contextlib.suppress(OSError):  # there is something in it that stays
                os.rmdir(path)
    return not os.path.lexists(start)


def _entries(folder: str, below: str = "") -> Iterator[tuple[str, bool, int, int]]:
    """All but folders of dsnb's: the relative path, whether it is dsnb's, its folder's descriptor and its length."""
    start = os.path.join(folder, below) if below else folder  # a slash at its end would follow a link
    for path, folders, names, descriptor in _walk(start):
        relative_folder = os.path.relpath(path, folder)
        for name in [*folders, *names]:
            relative = name if relative_folder == "." else f"{relative_folder}/{name}"
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    ours = stat.S_ISREG(status.st_mode) and _FILE.fullmatch(relative) is not None
                    yield relative, ours, descriptor, status.st_size
                elif not _FOLDER.fullmatch(relative):
                    yield relative, False, descriptor, 0


def _walk(folder: str) -> Iterator[tuple[str, list[str], list[str], int]]:
    """`os.fwalk`; nothing for a folder that is not there."""
    with contextlib.suppress(FileNotFoundError):
        yield from os.fwalk(folder, follow_symlinks=False)
