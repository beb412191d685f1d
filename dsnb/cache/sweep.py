"""What is wrong in a cache when it is opened: what killed processes left, what is gone, what is too old."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dsnb.cache.index import Index
from dsnb.cache.versions import is_compatible

_FINGERPRINTS: Final = 100_000  # entries without results that are kept


def is_tidy(directory: Path, index: Index) -> bool:
    """Whether entries and folders agree, and nothing is left over."""
    if too_old(index) or index.leases_over() or index.left_over() or index.abandoned():
        return False
    return index.locations() <= set(os.listdir(directory))


def tidy(directory: Path, index: Index) -> None:
    """Forget what is not there, drop what is too old, and leave what dead processes were writing.

    Inside of a `change()` only.
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
    for location in index.abandoned():
        index.leave(location)
    index.drop_oldest_without_result(_FINGERPRINTS)


def too_old(index: Index) -> list[str]:
    """The versions whose entries cannot be read any more."""
    return [version for version in index.versions() if not is_compatible(version)]
