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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from dsnb.monitor.formatting import plural
from dsnb.monitor.snapshot import VERSION, Snapshot
from dsnb.monitor.watch import fetch_snapshot
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.sqlite import DATABASE_FULL, Database, DatabaseKind
from dsnb.system_limits import limit_error
from dsnb.wire.codec import decode, encode

MAX_SNAPSHOTS = 7200
_STATUS_TIMEOUT_S = 5.0
"""A process whose threads compete for the GIL needs a second or more for a snapshot, and is worth recording."""
_JOIN_TIMEOUT_S = 2 * _STATUS_TIMEOUT_S + 1.0
"""For the snapshot that is being fetched, and the last one."""


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
        self._database = Database(Path(self.path), RUN_FILE)
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
            warn(
                f"{plural(self.missing, 'snapshot')} could not be written to {self.path} ({self._first_error})",
                DsnbWarning,
            )

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
                self._database.execute("PRAGMA busy_timeout = 200")
                self._database.execute("PRAGMA journal_mode = DELETE")

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
        data = zlib.compress(encode(snapshot), 1)
        with self._database.transaction():
            self._database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", snapshot.time, data)
            if self._database.value("SELECT count(*) FROM snapshots") > self._max_snapshots:
                self._database.execute(_THIN_OUT_SQL, self._max_snapshots // 2)

    def _note_failed_write(self, error: sqlite3.Error) -> None:
        self.missing += 1
        if self.missing == 1:
            self._first_error = str(error)
            with suppress(DsnbWarning):  # if warnings are errors, the thread must go on; `stop` warns too
                warn(
                    f"a snapshot of the run could not be written to {self.path} ({error}); dsnb tries again "
                    "with the next one: free some space on that disk",
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
        self._database = Database(Path(self.path), RUN_FILE, writable=False)

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
        raise NotFoundError(f"{self.path} has no snapshots yet", hint="wait for the first snapshot")

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
                return self._database.execute(query, *parameters).fetchall()
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
        hint=f"`sqlite3 {os.path.basename(path)} .recover` extracts the readable part; or use a backup",
    )


def _not_a_run_file_error(path: Path, reason: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{path} cannot be used as a run file: {reason}",
        did="it was left as it is",
        hint='name a file that svc.record wrote, or a new one, as in svc.record("run.db")',
    )


def _open_error(error: sqlite3.Error, path: Path) -> DsnbError:
    return limit_error(error) or _not_a_run_file_error(path, str(error))


def _foreign_error(path: Path) -> DsnbError:
    return _not_a_run_file_error(path, "it is another program's database")


def _format_error(path: Path, found: int) -> DsnbError:
    other = "a newer" if found > VERSION else "an older"
    return _not_a_run_file_error(path, f"{other} dsnb wrote it (version {found}; this one knows {VERSION})")


RUN_FILE = DatabaseKind(
    application_id=0x64736E72,  # "dsnr"
    migrations=("CREATE TABLE snapshots (time REAL PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",),
    oldest_format=VERSION,
    open_error=_open_error,
    foreign_error=_foreign_error,
    format_error=_format_error,
    private=False,
    commit=Failpoint("run file commit", error=DATABASE_FULL),
)
"""The kind of a run file."""
