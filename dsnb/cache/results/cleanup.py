"""Cleans up a training cache when it is opened: leftovers of dead processes, missing folders, incompatible entries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dsnb.cache.results.index import Index
from dsnb.cache.results.versions import is_compatible

_FINGERPRINTS: Final = 100_000  # how many entries without results are kept


def is_clean(directory: Path, index: Index) -> bool:
    """Whether entries and folders agree, and there is nothing to clean up."""
    if incompatible_versions(index) or index.expired_leases() or index.unused_folders() or index.abandoned_folders():
        return False
    return index.locations() <= set(os.listdir(directory))


def clean_up(directory: Path, index: Index) -> None:
    """Remove incompatible entries and expired leases, mark missing results, and mark abandoned folders as unused.

    Must be called inside a `transaction()`.
    """
    for version in incompatible_versions(index):
        index.drop_version(version)
    for number in index.expired_leases():
        index.release_lease(number)
    for location in index.locations():
        if (directory / location).is_dir():
            index.drop_if_unused(location)
        else:
            index.mark_missing(location)
    for location in index.abandoned_folders():
        index.mark_folder_unused(location)
    index.drop_oldest_without_result(_FINGERPRINTS)


def incompatible_versions(index: Index) -> list[str]:
    """The versions whose entries this version cannot read."""
    return [version for version in index.versions() if not is_compatible(version)]
