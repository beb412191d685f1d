"""Removes recordings from a directory, and nothing else: files that dsnb did not write are never removed.

A file is dsnb's if it has the name and the location of one, in the folder of a pipeline's key. Files are removed one by
one, relative to descriptors of their folders, so that no link is followed even if another process changes the tree
meanwhile. Folders are removed when they are empty.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from dsnb.storage.files import TEMPORARY_NAME

_KEY: Final = re.compile(r"[0-9a-f]{32}")
_TRASH: Final = re.compile(r"\.trash-[0-9a-f]{16}")
_FOLDER: Final = re.compile(r"\d{6,}(/(log|seg|beat))?")
SEGMENT_NAME: Final = r"[0-9a-f]{12}-\d+-\d*-[0-9a-f]{8}\.seg"
_FILE: Final = re.compile(
    rf"(lock|used|expires|about\.json|{TEMPORARY_NAME})"
    rf"|\d{{6,}}/(manifest|{TEMPORARY_NAME}|log/(\d{{8,}}|{TEMPORARY_NAME})|seg/{SEGMENT_NAME}|beat/(\d+|asked|{TEMPORARY_NAME}))"
)


def is_key(name: str) -> bool:
    """Whether a name is that of a folder for a pipeline's recordings."""
    return _KEY.fullmatch(name) is not None


def is_trash(name: str) -> bool:
    """Whether a name is that of a folder that is being removed."""
    return _TRASH.fullmatch(name) is not None


def foreign_files(folder: str) -> list[str]:
    """The files in a pipeline's folder that dsnb did not write, as relative paths."""
    return sorted(path for path, ours, _, _ in _entries(folder) if not ours)


def size_of(folder: str) -> int:
    """The total size of the files that dsnb wrote into a pipeline's folder, in bytes."""
    return sum(nbytes for _, ours, _, nbytes in _entries(folder) if ours)


def remove_recordings(folder: str, below: str = "") -> bool:
    """Remove the files that dsnb wrote into a pipeline's folder, and the folders that are empty then.

    Args:
        folder: The pipeline's folder.
        below: Remove only from this subfolder.

    Returns:
        Whether the folder, or the subfolder, is gone.
    """
    start = os.path.join(folder, below) if below else folder
    for path, ours, descriptor, _ in _entries(folder, below):
        if ours:
            with contextlib.suppress(OSError):
                os.unlink(os.path.basename(path), dir_fd=descriptor)
    for path in reversed([path for path, _, _, _ in _walk(start)]):
        if path == start or _FOLDER.fullmatch(os.path.relpath(path, folder)):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(path)
    return not os.path.lexists(start)


def _entries(folder: str, below: str = "") -> Iterator[tuple[str, bool, int, int]]:
    """All files, and folders that are not dsnb's: relative path, whether dsnb's, descriptor of its folder, size."""
    start = os.path.join(folder, below) if below else folder  # a trailing slash would make a link be followed
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
    """`os.fwalk`; yields nothing if the folder does not exist."""
    with contextlib.suppress(FileNotFoundError):
        yield from os.fwalk(folder, follow_symlinks=False)
