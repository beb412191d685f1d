"""SQLite files of dsnb: the training cache, the journal and recorded runs.

`Database` opens a file where that is safe and runs transactions; a `DatabaseKind` declares in what the files differ.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

from dsnb.errors import DsnbError
from dsnb.storage.filesystem import FileSystem, filesystem_of

DATABASE_FULL: Final = sqlite3.OperationalError("database or disk is full")
DATABASE_FULL.sqlite_errorcode = sqlite3.SQLITE_FULL
"""What SQLite raises when the disk is full."""


class DatabaseKind(msgspec.Struct, kw_only=True):
    """What distinguishes one kind of database file from the others.

    Attributes:
        application_id: Identifies the kind in the header of the file, where file(1) looks for it.
        migrations: The statements that lead from an empty file to `oldest_format`, and from each format to the next.
        oldest_format: The oldest format that can be opened.
        open_error: Translates SQLite's errors while the file is opened.
        foreign_error: The error for a database of another program.
        format_error: The error for a file of a format that cannot be opened.
        network_error: The error for a file on a network file system. None if the file system is not checked, because no
            other host writes the file.
        removed_error: The error for a transaction after the file was removed or replaced. None if this is not checked.
        busy_timeout_s: Seconds to wait for a lock of another process.
        exclusive: Whether the file is locked while it is open.
        private: Whether only the user may read the file.
        auto_vacuum: Whether the file shrinks when rows are deleted.
        commit: The failpoint of each commit.
    """

    application_id: int
    migrations: tuple[str, ...]
    open_error: Callable[[sqlite3.Error, Path], DsnbError]
    foreign_error: Callable[[Path], DsnbError]
    format_error: Callable[[Path, int], DsnbError]
    network_error: Callable[[Path, FileSystem], DsnbError] | None = None
    removed_error: Callable[[Path], DsnbError] | None = None
    oldest_format: int = 1
    busy_timeout_s: float = 5.0
    exclusive: bool = False
    private: bool = True
    auto_vacuum: bool = False
    commit: AbstractContextManager[None] = nullcontext()

    @property
    def newest_format(self) -> int:
        """The format that this version of dsnb writes."""
        return self.oldest_format + len(self.migrations) - 1


class Database:
    """One connection, for one thread at a time.

    The methods raise `sqlite3.Error`; only the constructor translates it.

    Args:
        path: The file; created if it does not exist. None for a database in memory.
        kind: The kind of the file.
        writable: Whether to open it for writing.

    Raises:
        DsnbError: the file cannot be opened, is of another kind or format, or is on a network file system: the errors
            of its kind.
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path | None, kind: DatabaseKind, *, writable: bool = True) -> None:
        self.path = Path(":memory:") if path is None else path.absolute()
        self.kind = kind
        self.writable = writable
        self._inode = 0
        self._busy_timeout_s = kind.busy_timeout_s
        journal_mode = self._choose_journal_mode()
        if path is not None and writable and kind.private:
            _create_private(self.path)
        try:
            self.connection = self._connect(in_memory=path is None)
            self._finalizer = weakref.finalize(self, self.connection.close)
            _open_databases.add(self)
            try:
                self._prepare(journal_mode)
                self._inode = 0 if path is None else self.path.stat().st_ino
            except BaseException:
                self.close()
                raise
        except sqlite3.Error as error:
            raise kind.open_error(error, self.path) from error

    # ---- opening

    def _choose_journal_mode(self) -> str:
        """The journal mode that the file system allows: WAL needs memory that all processes of the database share."""
        if self.kind.network_error is None:
            return "WAL"
        found = filesystem_of(str(self.path.parent))
        if found.network:
            raise self.kind.network_error(self.path, found)
        return "WAL" if found.local else "DELETE"

    def _connect(self, *, in_memory: bool) -> sqlite3.Connection:
        if in_memory:
            return self._open_connection(":memory:")
        uri = self.path.as_uri()
        if self.writable:
            return self._open_connection(f"{uri}?mode=rwc")
        reading = self._open_connection(f"{uri}?mode=ro")
        try:
            reading.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            reading.close()
            if is_busy(error) or Path(f"{self.path}-wal").exists():
                raise
            # A read-only folder without SQLite's other files: no process has the database open for writing, so it
            # cannot change, and it can be opened as immutable.
            return self._open_connection(f"{uri}?mode=ro&immutable=1")
        except BaseException:
            reading.close()
            raise
        return reading

    def _open_connection(self, uri: str) -> sqlite3.Connection:
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=self.kind.busy_timeout_s, check_same_thread=False
        )

    def _prepare(self, journal_mode: str) -> None:
        if self.kind.exclusive:
            self.execute("PRAGMA locking_mode = EXCLUSIVE")
        found = self._check_header()
        if not self.writable:
            return
        if self.kind.auto_vacuum and not found:  # SQLite ignores it in a file that has tables
            self.execute("PRAGMA auto_vacuum = FULL")
        self._set_journal_mode(journal_mode)
        # NORMAL survives the death of a process. A power failure may lose the newest transactions, never earlier ones.
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        if found < self.kind.newest_format:
            self._migrate()

    def _check_header(self) -> int:
        """The format of the file, 0 if it is empty; checked before anything in it is changed."""
        used = self.value("SELECT count(*) FROM sqlite_master")  # first: another process may be creating the tables
        found = int(self.value("PRAGMA user_version"))
        if not used and self.writable:
            return 0
        if self.value("PRAGMA application_id") != self.kind.application_id:
            raise self.kind.foreign_error(self.path)
        if not self.kind.oldest_format <= found <= self.kind.newest_format:
            raise self.kind.format_error(self.path, found)
        return found

    def _set_journal_mode(self, journal_mode: str) -> None:
        # SQLite's busy timeout does not cover this statement: when two processes create the database at once, one of
        # them gets SQLITE_BUSY immediately.
        deadline = time.monotonic() + self.kind.busy_timeout_s
        while self.value("PRAGMA journal_mode") not in {journal_mode.lower(), "memory"}:
            try:
                self.execute(f"PRAGMA journal_mode = {journal_mode}")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _migrate(self) -> None:
        kind = self.kind
        with self.transaction():
            found = self.value("PRAGMA user_version")  # another process may have migrated already
            for step in kind.migrations[found and found - kind.oldest_format + 1 :]:
                for statement in filter(str.strip, step.split(";\n")):
                    self.execute(statement)
            self.execute(f"PRAGMA application_id = {kind.application_id}")
            self.execute(f"PRAGMA user_version = {kind.newest_format}")

    # ---- use

    def close(self) -> None:
        """Close the connection; the second call does nothing."""
        self._finalizer()

    @staticmethod
    def file_names(path: Path) -> set[str]:
        """The names of a database file, its companions and its lock file in a folder, whether or not they exist."""
        return {path.name + ending for ending in ("", "-wal", "-shm", "-journal", "-calls")}

    @contextmanager
    def transaction(self, *, timeout_s: float | None = None) -> Iterator[None]:
        """A transaction under the write lock: either all changes of the block take effect, or none.

        Args:
            timeout_s: Seconds to wait for the lock; by default as long as the kind of the database says.

        Raises:
            DsnbError: the file was removed or replaced (`removed_error` of its kind).
            sqlite3.Error: another process held the lock for longer than the timeout; the disk is full.
        """
        self._check_not_removed()
        self._set_busy_timeout(self.kind.busy_timeout_s if timeout_s is None else timeout_s)
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self.kind.commit:
                self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.execute("ROLLBACK")
            raise

    def _set_busy_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._busy_timeout_s:
            self.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1000)}")
            self._busy_timeout_s = timeout_s

    def _check_not_removed(self) -> None:
        # SQLite would silently go on writing to a file that was unlinked.
        if self.kind.removed_error is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._inode in {0, self.path.stat().st_ino}:
                return
        raise self.kind.removed_error(self.path)

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Run one statement and return its cursor."""
        return self.connection.execute(statement, values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        self.connection.executemany(statement, rows)

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

    def detach_in_child(self) -> None:
        """In a forked child: never close a connection that locks the file, because that would damage the parent's file.

        Other connections may be closed: they do not own the file, and SQLite leaves it to the parent.
        """
        if self.kind.exclusive and self._finalizer.detach() is not None:
            # One reference too many: otherwise the garbage collector would close the connection.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))


_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _detach_all_in_child() -> None:
    for database in list(_open_databases):
        database.detach_in_child()


os.register_at_fork(after_in_child=_detach_all_in_child)


def _create_private(path: Path) -> None:
    # SQLite gives its WAL files the mode of this file. O_EXCL, because closing a descriptor of an existing file would
    # drop all POSIX locks that this process holds on it, those of an open database too.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def error_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, such as `sqlite3.SQLITE_FULL`; 0 if the error has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether a lock of another connection caused the error."""
    return error_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
