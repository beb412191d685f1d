"""Run files: the snapshots that the dashboard shows, recorded while a service runs and read back afterwards.

Theory of operation. A run file is an SQLite database with one compressed snapshot for each second, keyed by its time.
It uses write-ahead logging (WAL), so it can be read while it is written, and committed snapshots survive a crash of the
writer. Its size is bounded: when it has too many snapshots, every second one of the older half is deleted, so the
beginning of a long run becomes coarser but is never cut off.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from dsnb.arguments import checked
from dsnb.errors import (
    DataLossError,
    DataLossWarning,
    DsnbError,
    DsnbWarning,
    FailedPreconditionError,
    NotFoundError,
    warn,
)
from dsnb.monitor.snapshot import VERSION, Snapshot
from dsnb.monitor.watch import fetch_snapshot
from dsnb.system_limits import limit_error
from dsnb.wire.codec import decode, encode

APPLICATION_ID = 0x64736E72
"""SQLite's `application_id` of a run file, which tells it from other databases."""

MAX_SNAPSHOTS = 7200
_STATUS_TIMEOUT_S = 2.0
_JOIN_TIMEOUT_S = 5.0


class RunWriter:
    """Records a service's snapshots in a run file until it is stopped. Created by `DataService.record`.

    Args:
        path: Path of the file; snapshots of earlier runs in it are kept.
        target: The address of the service.
        token: The service's token; None to look it up by the address.
        every_s: Seconds between two snapshots.
        max_snapshots: Maximum number of snapshots in the file.

    Raises:
        FailedPreconditionError: the file cannot be written, or is not a run file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        target: str,
        token: str | None,
        *,
        every_s: float = 1.0,
        max_snapshots: int = MAX_SNAPSHOTS,
    ) -> None:
        self.path = os.path.abspath(path)
        self._target, self._token, self._every_s = target, token, every_s
        self._max_snapshots = max_snapshots
        self._first_error = ""
        self.missing = 0
        """The number of snapshots that could not be written."""
        self._database = _create(self.path)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsnb-record", daemon=True)
        self._thread.start()

    @checked()
    def stop(self) -> None:
        """Record one last snapshot and close the file; a second call does nothing.

        Warns if snapshots are missing in the file, for example because the disk was full.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        if self.missing:
            warn(f"{self.missing} snapshots of the run are missing in {self.path} ({self._first_error})", DsnbWarning)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"RunWriter({self.path!r}, {'stopped' if self._stop.is_set() else 'recording'})"

    def _run(self) -> None:
        with closing(self._database):
            self._record_snapshot()
            while not self._stop.wait(self._every_s):
                self._record_snapshot()
            self._record_snapshot()
            with suppress(sqlite3.Error):  # leave a single file, without -wal and -shm; fails if a reader has it open
                self._database.executescript("PRAGMA busy_timeout=200; PRAGMA journal_mode=DELETE")

    def _record_snapshot(self) -> None:
        try:
            snapshot = fetch_snapshot(self._target, self._token, _STATUS_TIMEOUT_S)
        except DsnbError:  # the service is unavailable, and may come back
            return
        try:
            self._write(snapshot)
        except sqlite3.Error as error:  # a full disk, for example: the next snapshot may succeed
            self._note_failed_write(error)

    def _write(self, snapshot: Snapshot) -> None:
        with self._database:
            row = (snapshot.time, zlib.compress(encode(snapshot), 1))
            self._database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", row)
            (count,) = self._database.execute("SELECT count(*) FROM snapshots").fetchone()
            if count > self._max_snapshots:
                self._database.execute(_THIN_OUT_SQL, (self._max_snapshots // 2,))

    def _note_failed_write(self, error: sqlite3.Error) -> None:
        self.missing += 1
        if self.missing == 1:
            self._first_error = str(error)
            with suppress(DsnbWarning):  # if warnings are errors, the thread must go on; `stop` warns too
                warn(
                    f"a snapshot of the run could not be kept in {self.path} ({error}); dsnb tries again with each "
                    "snapshot: free some room on that disk",
                    DsnbWarning,
                )


_THIN_OUT_SQL = """
DELETE FROM snapshots WHERE time IN (
    SELECT time FROM (SELECT time, row_number() OVER (ORDER BY time) AS number FROM snapshots ORDER BY time LIMIT ?)
    WHERE number % 2 = 0
)
"""


class RunReader:
    """Reads the snapshots of a run file by time. Works while the file is being written, and from any thread.

    Args:
        path: Path of a file that `DataService.record` wrote.

    Raises:
        NotFoundError: there is no such file.
        FailedPreconditionError: the file is not a run file, or was written by a newer dsnb.
        DataLossError: the file is damaged; raised by the methods.

    Example:
        >>> reader = RunReader("run.db")
        >>> reader.at(reader.times()[-1]).jobs
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        if not os.path.exists(self.path):
            raise NotFoundError(f"there is no file {self.path}", hint='svc.record("run.db") writes one')
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise limit_error(error) or _not_a_run_file_error(self.path, str(error)) from error
        try:
            _check_header(self._database, self.path)
        except sqlite3.Error as error:
            self._database.close()
            raise _not_a_run_file_error(self.path, str(error)) from error

    def check(self) -> None:
        """Check the whole file for damage, except in single snapshots, which the other methods leave out.

        Raises:
            DataLossError: the file is damaged.
        """
        (found,) = self._query("PRAGMA quick_check(1)")[0]
        if found != "ok":
            raise _damaged_error(self.path, " ".join(str(found).split()))

    def times(self) -> list[float]:
        """The times of all snapshots, in seconds since the Unix epoch, the oldest first.

        Raises:
            DataLossError: the file is damaged.
        """
        rows = self._query("SELECT time FROM snapshots ORDER BY time")
        return [time for (time,) in rows if isinstance(time, float)]

    def at(self, time: float) -> Snapshot:
        """The newest snapshot taken at or before `time`, or the first one if there is none.

        Skips damaged snapshots.

        Raises:
            NotFoundError: the file has no snapshots yet.
            DataLossError: the file is damaged.
        """
        there = False
        for first, then in ((_AT_OR_BEFORE_SQL, _BEFORE_SQL), (_AT_OR_AFTER_SQL, _AFTER_SQL)):
            row = self._first_row(first, time)
            while row is not None:
                there = True
                if (snapshot := _unpack(row)) is not None:
                    return snapshot
                row = self._first_row(then, row[0])
        if there:
            raise _damaged_error(self.path, "none of its snapshots can be read")
        raise NotFoundError(f"nothing was kept in {self.path} yet", hint="wait for the first snapshot")

    def between(self, first: float, last: float) -> Iterator[Snapshot]:
        """The snapshots from one time to another, both included, the oldest first.

        Damaged snapshots are left out; a warning at the end says how many.

        Raises:
            DataLossError: the file is damaged.
        """
        damaged = 0
        row = self._first_row(_AT_OR_AFTER_SQL, first)
        while row is not None and row[0] <= last:
            snapshot = _unpack(row)
            if snapshot is None:
                damaged += 1
            else:
                yield snapshot
            row = self._first_row(_AFTER_SQL, row[0])
        if damaged:
            are = "snapshot of {} is" if damaged == 1 else "snapshots of {} are"
            warn(f"{damaged} {are.format(self.path)} damaged and left out", DataLossWarning)

    def close(self) -> None:
        """Close the file; the reader cannot be used afterwards."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _first_row(self, query: str, *parameters: float) -> tuple[float, Any] | None:
        """The first valid row that a query finds: its time and its compressed snapshot."""
        return next((row for row in self._query(query, *parameters) if isinstance(row[0], float)), None)

    def _query(self, query: str, *parameters: float) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._database.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise _damaged_error(self.path, str(error)) from error


_AT_OR_AFTER_SQL = "SELECT time, data FROM snapshots WHERE time >= ? ORDER BY time LIMIT 1"
_AFTER_SQL = "SELECT time, data FROM snapshots WHERE time > ? ORDER BY time LIMIT 1"
_BEFORE_SQL = "SELECT time, data FROM snapshots WHERE time < ? ORDER BY time DESC LIMIT 1"
_AT_OR_BEFORE_SQL = "SELECT time, data FROM snapshots WHERE time <= ? ORDER BY time DESC LIMIT 1"


def _unpack(row: tuple[float, Any]) -> Snapshot | None:
    """The snapshot in a row; None if it is damaged."""
    try:
        return decode(Snapshot, zlib.decompress(row[1]))
    except (zlib.error, DataLossError, TypeError, ValueError):
        return None


def _damaged_error(path: str, reason: str) -> DataLossError:
    return DataLossError(
        f"the run file {path} is damaged: {reason}",
        did="it was left as it is",
        hint=f"`sqlite3 {os.path.basename(path)} .recover` saves what can still be read; or use a copy of it",
    )


def _create(path: str) -> sqlite3.Connection:
    """Open a run file for writing; create it if it does not exist."""
    try:
        database = sqlite3.connect(path, check_same_thread=False)
        try:
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                _check_header(database, path)
            database.executescript(
                f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA application_id={APPLICATION_ID};"
                f"PRAGMA user_version={VERSION};"
                "CREATE TABLE IF NOT EXISTS snapshots (time REAL PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;"
            )
        except BaseException:
            database.close()
            raise
    except sqlite3.Error as error:
        raise limit_error(error) or _not_a_run_file_error(path, str(error)) from error
    return database


def _check_header(database: sqlite3.Connection, path: str) -> None:
    application, version = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in _HEADER_PRAGMAS)
    if application != APPLICATION_ID:
        database.close()
        raise _not_a_run_file_error(path, "it is another program's database")
    if version > VERSION:
        database.close()
        raise _not_a_run_file_error(path, f"a newer dsnb wrote it (version {version}; this one knows {VERSION})")


_HEADER_PRAGMAS = ("application_id", "user_version")


def _not_a_run_file_error(path: str, reason: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{path} cannot be used as the file of a run: {reason}",
        did="it was left as it is",
        hint='name a file that svc.record wrote, or a new one, as in svc.record("run.db")',
    )
