"""The SQLite file of a training cache: opens it where that is safe, runs transactions, and translates its errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dsnb.errors import (
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.filesystem import filesystem_of

_COMMIT = Failpoint("entry commit")
_APPLICATION: Final = 0x64736E62  # "dsnb", where file(1) looks for it
# Seconds. Our transactions take no longer than a few renames, but a process may be suspended inside one.
BUSY_TIMEOUT_S: Final = 30.0
# File systems where each host caches file contents for itself: two hosts that write one database there lose rows.
_NETWORK: Final = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "virtiofs",
    "fuse.",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "gluster",
)


class Database:
    """One connection, for one thread at a time.

    Args:
        path: The file; created if it does not exist.
        migrations: For each format, the statements that lead to the next one; the first ones create the tables.

    Attributes:
        writable: Whether the database can be changed; False in a read-only folder.

    Raises:
        FailedPreconditionError: the file was written by a newer version or by another program, or is on a network
            file system.
        DataLossError: the file is damaged.
    """

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self.writable = os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
        journal_mode = _journal_mode(path)
        self._inode = 0
        with translate_errors(path):
            self._connection = _connect(path, writable=self.writable)
            try:
                self._open(journal_mode, migrations)
                self._inode = path.stat().st_ino
            except BaseException:
                self._connection.close()
                raise

    def _open(self, journal_mode: str, migrations: Sequence[str]) -> None:
        found = self._check_format(len(migrations))
        if not self.writable:
            return
        self._set_journal_mode(journal_mode)
        # NORMAL survives the death of a process. A power failure may lose the newest entries; the others stay intact,
        # because a result's files are synced before the entry that names them.
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        if found < len(migrations):
            self._migrate(migrations)

    def _check_format(self, newest: int) -> int:
        """The format of the file; checked before anything in it is changed."""
        used = self.value("SELECT count(*) FROM sqlite_master")  # first: another process may be creating the tables
        found = int(self.value("PRAGMA user_version"))
        if used and self.value("PRAGMA application_id") != _APPLICATION:
            raise FailedPreconditionError(
                f"{str(self.path)!r} is a database of another program",
                did="nothing in it was touched",
                hint="give the cache a folder of its own, or its database another name",
            )
        if found > newest:
            raise FailedPreconditionError(
                f"the cache {str(self.path)!r} was written by a newer version of dsnb (format {found}, not {newest})",
                did="nothing in it was touched",
                hint="update dsnb, or set DSNB_CACHE_DIRECTORY to another folder",
            )
        return found

    def _set_journal_mode(self, journal_mode: str) -> None:
        # SQLite's busy timeout does not cover this statement: when two processes create the database at once, one of
        # them gets SQLITE_BUSY immediately.
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while self.value("PRAGMA journal_mode") != journal_mode.lower():
            try:
                self.execute(f"PRAGMA journal_mode = {journal_mode}")
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _migrate(self, migrations: Sequence[str]) -> None:
        with self.transaction():
            for step in migrations[self.value("PRAGMA user_version") :]:  # another process may have migrated already
                for statement in filter(str.strip, step.split(";\n")):
                    self.execute(statement)
            self.execute(f"PRAGMA application_id = {_APPLICATION}")
            self.execute(f"PRAGMA user_version = {len(migrations)}")

    def close(self) -> None:
        """Close the connection to the database file."""
        self._connection.close()

    @staticmethod
    def file_names(path: Path) -> set[str]:
        """The names of a database file, its companions and its lock file in a folder, whether or not they exist."""
        return {path.name + ending for ending in ("", "-wal", "-shm", "-journal", "-calls")}

    @contextmanager
    def transaction(self, *, timeout_s: float | None = None) -> Iterator[None]:
        """A transaction under the write lock: either all changes of the block take effect, or none.

        Args:
            timeout_s: Seconds to wait for the lock; `BUSY_TIMEOUT_S` by default.

        Raises:
            FailedPreconditionError: the file was removed or replaced.
            UnavailableError: another process held the lock for longer than the timeout.
            ResourceExhaustedError: the disk is full.
        """
        self._check_not_removed()
        with translate_errors(self.path):
            self.execute(f"PRAGMA busy_timeout = {round((BUSY_TIMEOUT_S if timeout_s is None else timeout_s) * 1000)}")
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                with _COMMIT:
                    self.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self.execute("ROLLBACK")
                raise

    def _check_not_removed(self) -> None:
        # SQLite would silently go on writing to a file that was unlinked.
        with contextlib.suppress(FileNotFoundError):
            if self._inode in {0, self.path.stat().st_ino}:
                return
        raise FailedPreconditionError(
            f"the database {str(self.path)!r} was removed while the cache was open",
            did="nothing was stored",
            hint="make the cache object again, in a folder that is empty",
        )

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Run one statement and return its cursor."""
        return self._connection.execute(statement, values)

    def row(self, statement: str, *values: Any) -> Any:
        """The first row of a query; None if there is no row."""
        return self.execute(statement, *values).fetchone()

    def value(self, statement: str, *values: Any) -> Any:
        """The first column of the first row of a query; None if there is no row."""
        row = self.row(statement, *values)
        return row and row[0]

    def column(self, statement: str, *values: Any) -> list[Any]:
        """The first column of all rows of a query."""
        return [row[0] for row in self.execute(statement, *values)]


def _connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    if writable:
        # Private to the user: results may hold anything. SQLite gives its other files the mode of this one.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return _open_connection(path, "mode=rwc")
    reading = _open_connection(path, "mode=ro")
    try:
        reading.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        # A read-only folder without SQLite's shared-memory file: no process has the database open for writing, so it
        # cannot change, and it can be opened as immutable.
        reading.close()
        return _open_connection(path, "mode=ro&immutable=1")
    return reading


def _open_connection(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?{mode}", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False
    )


def _journal_mode(path: Path) -> str:
    """The journal mode that the file system allows: WAL needs memory that all processes of the database share."""
    lies_on = filesystem_of(str(path.parent))
    if lies_on.local:
        return "WAL"
    if lies_on.kind.startswith(_NETWORK):
        raise FailedPreconditionError(
            f"the cache {str(path.parent)!r} lies on {lies_on}, a network file system, where databases of two hosts "
            "drift apart in silence",
            did="nothing was opened",
            hint="set DSNB_CACHE_DIRECTORY to a folder on a disk of this machine",
        )
    return "DELETE"


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as dsnb's errors for users."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate_error(error, path) from error


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _translate_error(error: sqlite3.Error, path: Path) -> DsnbError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    what = f"the database of the cache {str(path)!r} says: {error}"
    if _is_busy(error):
        return UnavailableError(
            what,
            did="nothing was stored; what is stored stays",
            hint="look for a process that uses this cache and was stopped",
        )
    if code == sqlite3.SQLITE_FULL:
        return ResourceExhaustedError(
            what, did="nothing was stored; what is stored stays", hint="make room, or set DSNB_CACHE_DIRECTORY"
        )
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return DataLossError(
            what,
            did="nothing was touched",
            hint=f"remove {path.name} and the folders result-* beside it, and all is computed anew",
        )
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return PermissionDeniedError(
            what, did="nothing was stored", hint="set DSNB_CACHE_DIRECTORY to a folder that you may write to"
        )
    return UnavailableError(what, did="nothing was stored", hint="look whether the disk is in order")
