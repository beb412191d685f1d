"""The journal: a SQLite database with a snapshot of the state and all records since.

The records of a decision are one transaction, committed before the caller gets its reply. With write-ahead logging and
`synchronous=NORMAL`, committed records survive the death of the process; a power failure may lose the last records,
never earlier ones. When the records since the snapshot are more than twice the size of the state, a new snapshot
replaces them, so neither the file nor the time to read it grows with history. A service without a work folder uses an
in-memory database.

The connection locks the file while it is open, and the kernel frees the lock when the process dies, so two dispatchers
can never write one journal. Each row has a checksum, because SQLite has none for the data in its file.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec
import xxhash

from dsnb.dispatcher.invariants import validate
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.state import State, state_from_json
from dsnb.errors import AlreadyExistsError, DataLossError, FailedPreconditionError, UnavailableError

FORMAT = 3
"""The format version; increased when an older dsnb could not read what this one writes."""

_APPLICATION = 0x64736E62  # "dsnb", in the file's header
_MIN_TAIL_BYTES = 64 << 10
_MAX_TAIL_TO_STATE = 2
_RECORD_TYPES: dict[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}
_TABLES = (
    "CREATE TABLE snapshot (one INTEGER PRIMARY KEY, number INTEGER, state TEXT, digest TEXT)",
    "CREATE TABLE records (number INTEGER PRIMARY KEY, kind TEXT, fields TEXT, digest TEXT)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)


class Journal:
    """The records of one service. Not thread-safe: used under the dispatcher's lock.

    Args:
        path: The file, created if it does not exist; None for an in-memory database.

    Raises:
        AlreadyExistsError: another dispatcher uses the file.
        DataLossError: the file is damaged.
        FailedPreconditionError: a newer or an older dsnb wrote the file, or it is not a journal.

    Attributes:
        last_number: The number of the last committed record; 0 if there is none.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is not None:
            # SQLite gives its WAL files the mode of this file. O_EXCL, because closing a descriptor of an existing file
            # would drop all POSIX locks that this process holds on it, those of an open journal too.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._connection = sqlite3.connect(
            str(path or ":memory:"), timeout=0.2, isolation_level=None, check_same_thread=False
        )
        self._finalizer = weakref.finalize(self, self._connection.close)
        _open_journals.add(self)
        self._tail_bytes = self._state_bytes = self.last_number = 0
        try:
            self._prepare()
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.DatabaseError):
                raise self._open_error(error) from error
            raise

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        if not run("PRAGMA page_count").fetchone()[0]:  # only in a new file: a foreign file must not be changed
            run("PRAGMA auto_vacuum = FULL")  # the file shrinks when records are deleted
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        with self._connection:
            run("BEGIN EXCLUSIVE")
            application, version = (run(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
            if not run("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                for statement in _TABLES:
                    run(statement)
            elif application != _APPLICATION:
                raise FailedPreconditionError(
                    f"{self._path} is an SQLite file, and no journal of dsnb",
                    did="it was left as it is",
                    hint="use another work_dir",
                )
            elif version != FORMAT:
                other = "a newer" if version > FORMAT else "an older"
                raise FailedPreconditionError(
                    f"the journal {self._path} was written by {other} dsnb (format {version}; this one reads {FORMAT})",
                    did="it was left as it is, and nothing was started",
                    hint="install the dsnb that wrote it, or use another work_dir and begin anew",
                )

    # ---- writing

    def append(self, records: Iterable[Record]) -> None:
        """Commit records, all or none of them.

        Raises:
            UnavailableError: the database cannot be written.
        """
        rows, number = [], self.last_number
        for record in records:
            number += 1
            kind, text = type(record).__name__, msgspec.json.encode(record).decode()
            rows.append((number, kind, text, _digest(number, kind, text)))
        if not rows:
            return
        self._write(("INSERT INTO records VALUES (?, ?, ?, ?)", rows))
        self.last_number = number
        self._tail_bytes += sum(len(row[2]) for row in rows)

    @property
    def needs_compaction(self) -> bool:
        """Whether the records since the last snapshot are large enough to replace them by a new snapshot."""
        return self._tail_bytes > max(_MIN_TAIL_BYTES, _MAX_TAIL_TO_STATE * self._state_bytes)

    def compact(self, state: State) -> None:
        """Replace all records by a snapshot of the state.

        Raises:
            UnavailableError: the database cannot be written; the records are kept.
        """
        text = state.export()
        row = (1, self.last_number, text, _digest(self.last_number, "State", text))
        self._write(("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?)", [row]), ("DELETE FROM records", [()]))
        self._tail_bytes, self._state_bytes = 0, len(text)
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _write(self, *statements: tuple[str, Sequence[tuple[int | str, ...]]]) -> None:
        try:
            with self._connection:
                self._connection.execute("BEGIN")
                for statement, rows in statements:
                    self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise UnavailableError(
                f"the journal {self._path or 'in memory'} cannot be written ({error})",
                did="what was decided takes no effect before it is kept; that is tried again with the next call",
                hint="make room on the disk that holds the work_dir",
            ) from error

    # ---- reading

    def load(self) -> State:
        """The state from the snapshot and all records since.

        Raises:
            DataLossError: the snapshot or a record is damaged; the journal is closed.
        """
        try:
            return self._load()
        except (sqlite3.DatabaseError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            self.close()
            raise self._open_error(error) from error

    def _load(self) -> State:
        run = self._connection.execute
        if (found := run("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise ValueError(found)
        state = State()
        self.last_number = self._tail_bytes = 0
        for _, number, text, digest in run("SELECT * FROM snapshot"):
            _check(number, "State", text, digest)
            state, self.last_number, self._state_bytes = state_from_json(text), number, len(text)
        for number, kind, text, digest in run("SELECT * FROM records ORDER BY number"):
            _check(number, kind, text, digest)
            if number != self.last_number + 1:
                raise ValueError(f"corrupted record: {self.last_number + 1} is missing")
            state.apply(_decode_record(number, kind, text))
            self.last_number, self._tail_bytes = number, self._tail_bytes + len(text)
        validate(state)
        return state

    def _open_error(self, error: BaseException) -> AlreadyExistsError | DataLossError:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return AlreadyExistsError(
                f"another dispatcher uses the journal {self._path}",
                did="nothing was started",
                hint="stop that one, or use another work_dir; `dsnb status` lists the services of this user",
            )
        return DataLossError(
            f"the journal {self._path} is damaged ({type(error).__name__}: {error})",
            did="it was left as it is, and nothing was started",
            hint="put the folder back from a copy; or move it away to begin anew: jobs that were at work must then be "
            "read again, and nothing else is lost",
        )

    def close(self) -> None:
        """Close the file and free its lock; the second call does nothing."""
        _open_journals.discard(self)
        self._finalizer()

    def detach_in_child(self) -> None:
        """In a forked child: never use or close the connection, because that would damage the parent's file."""
        self._finalizer.detach()
        # One reference too many: otherwise the garbage collector would close the connection.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))


_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _detach_all_in_child() -> None:
    for journal in list(_open_journals):
        journal.detach_in_child()


os.register_at_fork(after_in_child=_detach_all_in_child)


def _digest(number: int, kind: str, text: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"{number} {kind} {text}".encode())


def _check(number: int, kind: str, text: str, digest: str) -> None:
    if _digest(number, kind, text) != digest:
        raise ValueError(f"corrupted record {number}")


def _decode_record(number: int, kind: str, text: str) -> Record:
    try:
        return msgspec.json.decode(text, type=_RECORD_TYPES[kind])
    except (LookupError, ValueError, msgspec.DecodeError) as error:  # no ValueError in older releases
        raise ValueError(f"Failed to parse journal record {number}, a {kind}: {error}") from error
