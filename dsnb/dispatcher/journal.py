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

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import msgspec
import xxhash

from dsnb.dispatcher.invariants import validate
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.state import State, state_from_json
from dsnb.errors import (
    AlreadyExistsError,
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.sqlite import DATABASE_FULL, Database, DatabaseKind, error_code

FORMAT = 9
"""The format version; increased when an older dsnb could not read what this one writes."""
OLDEST_FORMAT = 8
"""The oldest format that can be read: 9 adds the data ports of workers, and workers that replace others."""
_MIN_TAIL_BYTES = 64 << 10
_MAX_TAIL_TO_STATE = 2
_RECORD_TYPES: dict[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}
_TABLES = """
CREATE TABLE snapshot (one INTEGER PRIMARY KEY, number INTEGER, state TEXT, digest TEXT);
CREATE TABLE records (number INTEGER PRIMARY KEY, kind TEXT, fields TEXT, digest TEXT);
"""


def _open_error(error: BaseException, path: Path) -> DsnbError:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return AlreadyExistsError(
            f"another dispatcher uses the journal {path}",
            did="nothing was started",
            hint="stop that one, or use another work_dir; `dsnb status` lists the services of this user",
        )
    if isinstance(error, sqlite3.Error) and error_code(error) == sqlite3.SQLITE_FULL:
        return ResourceExhaustedError(
            f"the journal {path} cannot be written ({error})",
            did="it was left as it is, and nothing was started",
            hint="free some space on the disk of the work_dir",
        )
    return DataLossError(
        f"the journal {path} is damaged ({type(error).__name__}: {error})",
        did="it was left as it is, and nothing was started",
        hint="restore the folder from a copy, or move it away to start without it: jobs that were at work must then be "
        "read again, and nothing else is lost",
    )


def _foreign_error(path: Path) -> DsnbError:
    return FailedPreconditionError(
        f"{path} is an SQLite file, and no journal of dsnb",
        did="it was left as it is",
        hint="use another work_dir",
    )


def _format_error(path: Path, found: int) -> DsnbError:
    other = "a newer" if found > FORMAT else "an older"
    return FailedPreconditionError(
        f"the journal {path} was written by {other} dsnb (format {found}; this one reads {FORMAT})",
        did="it was left as it is, and nothing was started",
        hint="install the dsnb that wrote it, or use another work_dir",
    )


_JOURNAL = DatabaseKind(
    application_id=0x64736E62,  # "dsnb"
    migrations=(_TABLES, ""),  # no table has changed since
    oldest_format=OLDEST_FORMAT,
    open_error=_open_error,
    foreign_error=_foreign_error,
    format_error=_format_error,
    busy_timeout_s=0.2,
    exclusive=True,
    auto_vacuum=True,
    commit=Failpoint("journal commit", error=DATABASE_FULL),
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
        database: The file.
        last_number: The number of the last committed record; 0 if there is none.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.database = Database(path, _JOURNAL)
        self._tail_bytes = self._state_bytes = self.last_number = 0

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
        self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _write(self, *statements: tuple[str, Sequence[tuple[int | str, ...]]]) -> None:
        try:
            with self.database.transaction():
                for statement, rows in statements:
                    self.database.execute_many(statement, rows)
        except sqlite3.Error as error:
            raise UnavailableError(
                f"the journal {self._path or 'in memory'} cannot be written ({error})",
                did="nothing takes effect until it is written; dsnb tries again with the next call",
                hint="free some space on the disk of the work_dir",
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
            raise _open_error(error, self.database.path) from error

    def _load(self) -> State:
        run = self.database.execute
        if (found := self.database.value("PRAGMA quick_check(1)")) != "ok":
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

    def close(self) -> None:
        """Close the file and free its lock; the second call does nothing."""
        self.database.close()


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
