"""Results in folders, entries in a database: what happens when one is written, read, or makes room, and in what order.

Writing: the result goes into a folder aside, named for the process that writes; it is hashed and synced there. Then, in
one transaction: room is made, the folder gets its name, the entry is written. After it, the folders that lost their
entries are removed. So a process may die at any moment. Before the rename it leaves a folder aside, of a process that
is gone; between rename and commit a folder that no entry names; after the commit folders that no entry names any more.
Nothing of that is ever read, and whoever opens the cache next removes it: no live process can be between rename and
commit meanwhile, for both happen under the write lock, which the sweep takes too.

Reading: a lease keeps the folder where it is; it is a row that names its holder, and falls with it. What is read is
hashed first, and what is not what was written is dropped and never handed on.

What else lies in the folder is counted when the cache is opened, and is the first to go when room is needed: before any
entry. So the folder must be the cache's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dsnb.cache.content import Content, content_of
from dsnb.cache.database import Database, spoken
from dsnb.cache.faults import Point
from dsnb.cache.files import sync_folder
from dsnb.cache.index import FORM, SCHEMA, Entry, Found, Index
from dsnb.cache.process import here
from dsnb.cache.sweep import ASIDE, RESULT, is_result, is_tidy, tidied, too_old, weight
from dsnb.cache.versions import this_version
from dsnb.dataclass import dataclass
from dsnb.errors import DsnbError, UnavailableError

logger = logging.getLogger(__name__)

_SYNC = Point("result sync")
_NAME = Point("result name")
_FOLDER = Point("result folder")
_REMOVE = Point("result remove")

HURRIED: Final = 2.0  # seconds that a look-up waits for the lock: without it only recency or order suffers


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """A result that is written and synced, but not named yet."""

    folder: Path
    content: Content
    type: str
    seconds: float = 0.0


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_forking: list[Store] = []  # those whose locks a fork holds just now


class Store:
    """The folder of one cache, as this process has it open. May be used from any thread.

    Args:
        directory: The folder, which is the cache's own.
        name: The database's name in it.
        limit: Bytes that all results may weigh.
    """

    def __init__(self, directory: Path, name: str, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._path = directory / name
        self._lock = threading.RLock()
        self._open()
        self._untracked = sum(map(weight, self._untracked_paths()))
        _stores.add(self)

    # -------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> None:
        self._database = Database(self._path, SCHEMA, FORM)
        self._index = Index(self._database)
        self._is_open = True
        if not self._database.writable:
            logger.warning("the cache %s cannot be written to: it is read from, and nothing is stored", self.directory)
            return
        try:
            with spoken(self._path):
                self._sweep()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the database; the next use opens it again."""
        with self._lock:
            self._database.close()
            self._is_open = False

    def hold(self) -> None:
        """Let no other thread be inside a transaction while this process forks."""
        self._lock.acquire()

    def let_go(self) -> None:
        """Go on after a fork."""
        self._lock.release()

    def begin_anew(self) -> None:
        """Let go of the parent's connection, whose locks this process does not have; the next use makes its own."""
        self._lock = threading.RLock()
        self.close()

    @contextmanager
    def _changing(self, *, patience: float | None = None) -> Iterator[Index]:
        """One transaction."""
        with self.reading() as index, self._database.change(patience=patience):
            yield index

    @contextmanager
    def reading(self) -> Iterator[Index]:
        """The entries, to look at."""
        with self._lock, spoken(self._path):
            if not self._is_open:
                self._open()
            yield self._index

    @property
    def writable(self) -> bool:
        """Whether anything can be stored."""
        with self.reading():
            return self._database.writable

    def _sweep(self) -> None:
        # Looked at without the lock: nearly always there is nothing to do.
        if is_tidy(self.directory, self._index):
            return
        # What is too old must go before anything is looked up. All else can wait for whoever opens the cache next.
        patience = None if too_old(self._index) else HURRIED
        try:
            with self._database.change(patience=patience):
                left = tidied(self.directory, self._index)
        except UnavailableError as error:
            if patience is None:
                raise
            logger.debug("the cache %s is left untidy: %s", self.directory, error)
            return
        self._remove(left)

    def _untracked_paths(self) -> list[Path]:
        with self.reading() as index:
            known = index.locations() | self._database.files()
        names = [name for name in os.listdir(self.directory) if name not in known and not name.startswith(ASIDE)]
        return [self.directory / name for name in sorted(names)]

    def _remove(self, locations: list[str]) -> None:
        for location in locations:
            with _REMOVE:
                shutil.rmtree(self.directory / location, ignore_errors=True)

    # -------------------------------------------------------------------------------------------------------- writing

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """A new folder to write a result into; what is left of it at the end is removed."""
        folder = self.directory / f"{ASIDE}{here().short()}-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def seal(folder: Path) -> Content:
        """Hash a folder that is written, and make it last."""

        def sync(descriptor: int) -> None:
            with _SYNC:
                os.fsync(descriptor)

        return content_of(str(folder), sync)

    def add(self, entry: Entry, staged: Staged | None = None) -> bool:
        """Store an entry, in the place of what was stored with its key.

        Returns:
            Whether a result is kept with it: there may be no room, because all of it is being read or is too little.

        Raises:
            DsnbError: the database could not be written; then nothing is stored, and no folder is left.
        """
        made: list[str] = []
        freed: list[str] = []
        try:
            with self._changing() as index:
                location = self._place(index, staged, made, freed) if staged else None
                kind = staged.type if staged and location else None
                freed += index.add_entry(entry, this_version(), location, kind)
        except BaseException:
            self._remove(made)
            raise
        self._remove(freed)
        return location is not None

    def _place(self, index: Index, staged: Staged, made: list[str], freed: list[str]) -> str | None:
        """Give a result its name, or find that its content is here already."""
        content = staged.content
        known = index.location_of(content.digest)
        if known and (self.directory / known).is_dir():
            return known
        if known:
            index.lose(known)
        if not self._make_room(index, content.bytes, freed):
            return None
        location = f"{RESULT}{content.digest[:12]}-{secrets.token_hex(4)}"
        made.append(location)
        with _NAME:
            os.rename(staged.folder, self.directory / location)
        sync_folder(str(self.directory), _FOLDER)
        index.add_result(location, content.digest, content.bytes, staged.seconds)
        return location

    def _make_room(self, index: Index, needed: int, freed: list[str]) -> bool:
        if needed > self.limit:
            return False
        over = index.bytes() + needed - self.limit
        if self._untracked and over + self._untracked > 0:
            self._purge()
        if over <= 0:
            return True
        for number in index.leases_over():
            freed += index.give_back(number)
        victims = index.drop_least(over)
        freed += victims
        return bool(victims)

    def _purge(self) -> None:
        """Remove what lies in the folder and is not ours."""
        paths = [path for path in self._untracked_paths() if not is_result(path.name)]
        if paths:
            logger.warning("the cache %s removes, to make room: %s", self.directory, [path.name for path in paths])
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._untracked = 0

    def drop(self, keys: list[str]) -> None:
        """Drop the entries with these keys."""
        with self._changing() as index:
            freed = [location for key in keys for location in index.drop_key(key)]
        self._remove(freed)

    # -------------------------------------------------------------------------------------------------------- reading

    def output_of(self, key: str) -> str | None:
        """The output fingerprint stored with a key, which is now the one used last."""
        with self.reading() as index:
            output = index.output_of(key)
        if output is not None:
            self._touch(output)
        return output

    def _touch(self, output: str) -> None:
        if not self.writable:
            return
        try:
            with self._changing(patience=HURRIED) as index:
                index.touch(output)
        except DsnbError as error:
            logger.debug("recency of %s is not noted: %s", output, error)

    @contextmanager
    def lent(self, output: str) -> Iterator[tuple[Found, Path] | None]:
        """A result with this output fingerprint and its folder, which stays until the block ends.

        None where there is none. What is not as it was written is dropped, and never given out.
        """
        found, lease = self._lend(output)
        try:
            yield (found, self.directory / found.location) if found and self._is_whole(found) else None
        finally:
            if lease is not None:
                self._give_back(lease)

    def _lend(self, output: str) -> tuple[Found | None, int | None]:
        if not self.writable:
            with self.reading() as index:
                return index.result_of(output), None
        try:
            with self._changing(patience=HURRIED) as index:
                found = index.result_of(output)
                if found is None:
                    return None, None
                index.touch(output)
                return found, index.lend(found.location)
        except DsnbError as error:
            logger.debug("the result of %s is read without a lease: %s", output, error)
            with self.reading() as index:
                return index.result_of(output), None

    def _give_back(self, lease: int) -> None:
        try:
            with self._changing() as index:
                freed = index.give_back(lease)
            self._remove(freed)
        except DsnbError as error:
            logger.debug("lease %d is left to fall with this process: %s", lease, error)

    def _is_whole(self, found: Found) -> bool:
        folder = self.directory / found.location
        try:
            whole = content_of(str(folder)).digest == found.digest
        except (OSError, DsnbError):
            whole = False
        if not whole:
            logger.warning("the result %s is missing or damaged: it is not used any more", folder)
            self._lose(found.location)
        return whole

    def _lose(self, location: str) -> None:
        if not self.writable:
            return
        with contextlib.suppress(DsnbError):
            with self._changing() as index:
                index.lose(location)
            self._remove([location])


def _before_fork() -> None:
    for store in list(_stores):
        store.hold()
        _forking.append(store)


def _after_fork(act: Callable[[Store], None]) -> None:
    while _forking:
        act(_forking.pop())


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(Store.let_go),
    after_in_child=lambda: _after_fork(Store.begin_anew),
)
