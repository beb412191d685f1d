"""Stores results in folders and their entries in a database: the order of steps of writing, reading and evicting.

Writing: a folder is reserved in the database, then made. The result is written into it, hashed and synced. Then one
transaction evicts other results if necessary, turns the folder into a result, and writes the entry. So a process may
die at any moment. If it dies before that transaction, it leaves a folder that is reserved for a dead process; evicted
results leave folders that are marked as unused. Neither kind is ever read; the next process that opens the cache
removes them.

Reading: a lease protects the folder from eviction. It is a row that names its holder, and expires with the holder. A
result is hashed before it is used; if it is not what was written, it is dropped and never returned.

Removing: only folders that the database names are removed, and only if `_is_result_folder` accepts the name. Other
files in the directory are neither counted nor touched, and a directory with other content does not become a cache.
(Links are not followed: `shutil.rmtree` refuses a folder that is a link, and removes links in a folder as links.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from dsnb.cache.results.cleanup import clean_up, incompatible_versions, is_clean
from dsnb.cache.results.database import TRAINING_CACHE, translate_errors
from dsnb.cache.results.folder_hash import FolderContent, hash_folder
from dsnb.cache.results.index import CacheEntry, Index, StoredResult
from dsnb.cache.results.versions import this_version
from dsnb.errors import DataLossError, DsnbError, FailedPreconditionError, UnavailableError
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.files import sync_folder
from dsnb.storage.sqlite import Database

logger = logging.getLogger(__name__)

_SYNC = Failpoint("result sync")
_MAKE = Failpoint("result make")
_FOLDER = Failpoint("result folder")
_REMOVE = Failpoint("result remove")

_RESULT: Final = "result-"
SHORT_TIMEOUT_S: Final = 2.0  # seconds to wait for the write lock for updates that can be left out, such as recency


class StagedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result that is written and synced, and has no entry yet.

    Attributes:
        folder: The folder that holds it.
        content: The hash and the size of what is in the folder.
        type: The name of the output's class.
        seconds: How long the output took to make.
    """

    folder: Path
    content: FolderContent
    type: str
    seconds: float = 0.0


_stores: weakref.WeakSet[ResultStore] = weakref.WeakSet()
_locked_for_fork: list[ResultStore] = []  # the stores whose locks are held for a fork that is in progress


class ResultStore:
    """The folder of one cache, opened by this process. Thread-safe.

    Args:
        directory: The folder: empty, or already a cache.
        name: The file name of the database in it.
        limit: The largest total size of all results, in bytes.

    Raises:
        FailedPreconditionError: the folder holds other files.
    """

    def __init__(self, directory: Path, name: str, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._path = directory / name
        self._lock = threading.RLock()
        self._unfinished_folders: set[str] = set()  # folders that this object made and that are not results yet
        self._open()
        _stores.add(self)

    # -------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> None:
        _check_directory(self._path)
        self._database = Database(self._path, TRAINING_CACHE, writable=_is_writable(self._path))
        self._index = Index(self._database)
        self._is_open = True
        if not self._database.writable:
            logger.warning("the cache %s cannot be written to: it is read from, and nothing is stored", self.directory)
            return
        try:
            with translate_errors(self._path):
                self._clean_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the database; the next use opens it again."""
        with self._lock:
            self._database.close()
            self._is_open = False

    def lock_before_fork(self) -> None:
        """Lock the store, so that no other thread is inside a transaction while this process forks."""
        self._lock.acquire()

    def unlock_after_fork(self) -> None:
        """Unlock the store in the parent."""
        self._lock.release()

    def reset_after_fork(self) -> None:
        """Drop the parent's connection, whose locks the child does not hold; the next use opens a new one."""
        self._lock = threading.RLock()
        self.close()

    @contextmanager
    def _transaction(self, *, timeout_s: float | None = None) -> Iterator[Index]:
        """One transaction; afterwards the folders that became unused are removed."""
        with self.reading() as index, self._database.transaction(timeout_s=timeout_s):
            yield index
        self._remove_unused_folders()

    @contextmanager
    def reading(self) -> Iterator[Index]:
        """The entries, to read; opens the database if it is closed."""
        with self._lock, translate_errors(self._path):
            if not self._is_open:
                self._open()
            yield self._index

    @property
    def writable(self) -> bool:
        """Whether results can be stored."""
        with self.reading():
            return self._database.writable

    def _clean_up(self) -> None:
        # Check without the write lock first: nearly always there is nothing to do.
        if is_clean(self.directory, self._index):
            return
        # Entries of incompatible versions must be dropped before any look-up. The rest can wait for the next opening.
        timeout_s = None if incompatible_versions(self._index) else SHORT_TIMEOUT_S
        try:
            with translate_errors(self._path), self._database.transaction(timeout_s=timeout_s):
                clean_up(self.directory, self._index)
        except UnavailableError as error:
            if timeout_s is None:
                raise
            logger.debug("the cache %s could not be cleaned up: %s", self.directory, error)
            return
        self._remove_unused_folders()

    def _remove_unused_folders(self) -> None:
        """Remove the folders of results that are gone; a folder that cannot be removed is tried again next time."""
        with contextlib.suppress(DsnbError), self.reading() as index:
            removed = [location for location in index.unused_folders() if self._remove_folder(location)]
            if removed:
                with self._database.transaction(timeout_s=SHORT_TIMEOUT_S):
                    for location in removed:
                        index.forget_folder(location)

    def _remove_folder(self, location: str) -> bool:
        """Remove a folder that the database names; returns whether it is gone."""
        if not _is_result_folder(location):
            logger.warning("the cache %s names %r, which is no folder of a result: left alone", self._path, location)
            return True
        with _REMOVE:
            shutil.rmtree(self.directory / location, ignore_errors=True)
        return not os.path.lexists(self.directory / location)

    # -------------------------------------------------------------------------------------------------------- writing

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """A new folder to write a result into; it is removed at the end of the block, unless `add` made it a result."""
        location = f"{_RESULT}{secrets.token_hex(8)}"
        with self._transaction() as index:
            index.reserve_folder(location)
        with _MAKE:
            (self.directory / location).mkdir(mode=0o700)
        self._unfinished_folders.add(location)
        try:
            yield self.directory / location
        finally:
            if location in self._unfinished_folders:
                self._discard(location)

    def _discard(self, location: str) -> None:
        self._unfinished_folders.discard(location)
        try:
            with self._transaction() as index:
                # No effect on a result: an interrupt may have arrived directly after the commit of `add`.
                index.mark_folder_unused(location)
        except DsnbError:
            # Without the database the folder's row cannot be updated: remove the folder itself, at least.
            self._remove_folder(location)

    @staticmethod
    def hash_and_sync(folder: Path) -> FolderContent:
        """Hash a finished folder and sync its files to disk."""

        def sync(descriptor: int) -> None:
            with _SYNC:
                os.fsync(descriptor)

        os.chmod(folder, 0o700)  # an output that copies a whole folder also copies its mode
        return hash_folder(str(folder), sync)

    def add(self, entry: CacheEntry, staged: StagedResult | None = None) -> bool:
        """Store an entry; it replaces the entry with the same key.

        Returns:
            Whether a result is kept with it. False if there is no room: the result is larger than the limit, or too
            many other results are being read.

        Raises:
            DsnbError: the database could not be written; then nothing is stored and no folder is left.
        """
        with self._transaction() as index:
            location = self._add_result(index, staged) if staged else None
            index.add_entry(entry, this_version(), location, staged.type if staged and location else None)
        if staged and location == staged.folder.name:
            self._unfinished_folders.discard(location)
        return location is not None

    def _add_result(self, index: Index, staged: StagedResult) -> str | None:
        """Turn a written folder into a result, or find a result with the same content; None if there is no room."""
        content = staged.content
        known = index.location_of(content.digest)
        if known and (self.directory / known).is_dir():
            return known
        if known:
            index.mark_missing(known)
        if not self._make_room(index, content.nbytes):
            return None
        # The folder's name must be durable before an entry refers to it.
        sync_folder(str(self.directory), _FOLDER)
        location = staged.folder.name
        index.add_result(location, content.digest, content.nbytes, staged.seconds)
        return location

    def _make_room(self, index: Index, needed: int) -> bool:
        if needed > self.limit:
            return False
        over = index.total_bytes() + needed - self.limit
        if over <= 0:
            return True
        for number in index.expired_leases():
            index.release_lease(number)
        return bool(index.evict_lowest_ranked(over))

    def drop(self, keys: list[str]) -> None:
        """Remove the entries with these keys."""
        with self._transaction() as index:
            for key in keys:
                index.drop_key(key)

    # -------------------------------------------------------------------------------------------------------- reading

    def output_of(self, key: str) -> str | None:
        """The output fingerprint stored with a key, or None; marks the entry as most recently used."""
        with self.reading() as index:
            output = index.output_of(key)
        if output is not None:
            self._touch(output)
        return output

    def _touch(self, output: str) -> None:
        if not self.writable:
            return
        try:
            with self._transaction(timeout_s=SHORT_TIMEOUT_S) as index:
                index.touch(output)
        except DsnbError as error:
            logger.debug("recency of %s is not noted: %s", output, error)

    @contextmanager
    def leased(self, output: str) -> Iterator[tuple[StoredResult, Path] | None]:
        """A result with this output fingerprint and its folder, or None; the folder stays until the block ends.

        Raises:
            DataLossError: the result is not as it was written; it is dropped and never returned.
        """
        found, lease = self._acquire_lease(output)
        try:
            if found is not None:
                self._check_intact(found)
            yield (found, self.directory / found.location) if found is not None else None
        finally:
            if lease is not None:
                self._release_lease(lease)

    def _acquire_lease(self, output: str) -> tuple[StoredResult | None, int | None]:
        if not self.writable:
            with self.reading() as index:
                return index.result_of(output), None
        try:
            with self._transaction(timeout_s=SHORT_TIMEOUT_S) as index:
                found = index.result_of(output)
                if found is None:
                    return None, None
                index.touch(output)
                return found, index.acquire_lease(found.location)
        except DsnbError as error:
            # Without a lease the folder may be evicted during the read; then the read fails and counts as a miss.
            logger.debug("the result of %s is read without a lease: %s", output, error)
            with self.reading() as index:
                return index.result_of(output), None

    def _release_lease(self, lease: int) -> None:
        try:
            with self._transaction() as index:
                index.release_lease(lease)
        except DsnbError as error:
            logger.debug("lease %d could not be released, and lasts until this process ends: %s", lease, error)

    def _check_intact(self, found: StoredResult) -> None:
        folder = self.directory / found.location
        try:
            intact = hash_folder(str(folder)).digest == found.digest
        except (OSError, DsnbError):
            intact = False
        if not intact:
            self._mark_missing(found.location)
            raise DataLossError(
                f"the result {folder} is missing or damaged",
                did="it is not used any more",
                hint="if this happens again, check the disk for errors",
            )

    def _mark_missing(self, location: str) -> None:
        if not self.writable:
            return
        with contextlib.suppress(DsnbError), self._transaction() as index:
            index.mark_missing(location)


def _is_result_folder(location: str) -> bool:
    """Whether a name is one that this class gives to folders of results."""
    return re.fullmatch(r"result-[0-9a-f]+(-[0-9a-f]+)?", location) is not None


def _is_writable(path: Path) -> bool:
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))


def _check_directory(database: Path) -> None:
    """Raise if a directory is neither empty nor a cache."""
    with contextlib.suppress(FileNotFoundError):
        if database.stat().st_size:
            return  # opening the database checks who made it
    others = sorted(set(os.listdir(database.parent)) - Database.file_names(database))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise FailedPreconditionError(
            f"the folder {str(database.parent)!r} is not empty, and is not a cache: it contains {others[0]!r}{more}",
            did="nothing was opened, and nothing in it was touched",
            hint="use a separate folder for the cache; it does not have to exist yet",
        )


def _before_fork() -> None:
    for store in list(_stores):
        store.lock_before_fork()
        _locked_for_fork.append(store)


def _after_fork(act: Callable[[ResultStore], None]) -> None:
    while _locked_for_fork:
        act(_locked_for_fork.pop())


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(ResultStore.unlock_after_fork),
    after_in_child=lambda: _after_fork(ResultStore.reset_after_fork),
)
