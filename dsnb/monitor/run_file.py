"""A run of a service in a file: what the dashboard shows, kept while it happens and read back afterwards.

Theory of operation. A file is an SQLite database with a snapshot a second, packed, under its time. It is written ahead
(WAL), so it can be read while it is written, and what was committed survives whatever happens to the writer. It is
bounded: when it has too many snapshots, each second one of its older half goes, so the beginning of a long run becomes
coarser and is never cut off.
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
from dsnb.limits import explained
from dsnb.monitor.snapshot import VERSION, Snapshot
from dsnb.monitor.watch import fetch_snapshot
from dsnb.wire.codec import decode, encode

APPLICATION = 0x64736E72
"""Stands in the header of each file, so that no other database is taken for one."""

MOST = 7200
_ANSWER_S = 2.0
_JOIN_S = 5.0


class RunWriter:
    """Keeps what a service looks like in a file, until it is stopped. Made by `DataService.record`.

    Args:
        path: Of the file; what an earlier run kept there stays, before what comes now.
        target: Where the service listens.
        token: The service's; None to look it up by the address.
        every_s: Seconds between two snapshots.
        most: Snapshots in the file.

    Raises:
        FailedPreconditionError: the file cannot be written, or is something else.
    """

    def __init__(
        self, path: str | os.PathLike[str], target: str, token: str | None, *, every_s: float = 1.0, most: int = MOST
    ) -> None:
        self.path = os.path.abspath(path)
        self._target, self._token, self._every_s = target, token, every_s
        self._most = most
        self._why = ""
        self.missing = 0
        """Snapshots that could not be written."""
        self._database = _create(self.path)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsnb-record", daemon=True)
        self._thread.start()

    @checked()
    def stop(self) -> None:
        """Keep one last snapshot and close the file; the second call does nothing.

        Warns if the file misses snapshots, as on a disk that was full.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(_JOIN_S)
        if self.missing:
            warn(f"{self.missing} snapshots of the run are missing in {self.path} ({self._why})", DsnbWarning)

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
            self._look()
            while not self._stop.wait(self._every_s):
                self._look()
            self._look()
            with suppress(sqlite3.Error):  # one file is left, unless somebody reads it at this moment
                self._database.executescript("PRAGMA busy_timeout=200; PRAGMA journal_mode=DELETE")

    def _look(self) -> None:
        try:
            snapshot = fetch_snapshot(self._target, self._token, _ANSWER_S)
        except DsnbError:  # the service is away, and may come back
            return
        try:
            self._keep(snapshot)
        except sqlite3.Error as error:  # the next snapshot may find room
            self._miss(error)

    def _keep(self, snapshot: Snapshot) -> None:
        with self._database:
            row = (snapshot.time, zlib.compress(encode(snapshot), 1))
            self._database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", row)
            (count,) = self._database.execute("SELECT count(*) FROM snapshots").fetchone()
            if count > self._most:
                self._database.execute(_THIN, (self._most // 2,))

    def _miss(self, error: sqlite3.Error) -> None:
        self.missing += 1
        if self.missing == 1:
            self._why = str(error)
            with suppress(DsnbWarning):  # where warnings are errors, `stop` raises one too
                warn(
                    f"a snapshot of the run could not be kept in {self.path} ({error}); dsnb tries again with each "
                    "snapshot: free some room on that disk",
                    DsnbWarning,
                )


_THIN = """
DELETE FROM snapshots WHERE time IN (
    SELECT time FROM (SELECT time, row_number() OVER (ORDER BY time) AS number FROM snapshots ORDER BY time LIMIT ?)
    WHERE number % 2 = 0
)
"""


class RunReader:
    """What a file kept of a run, by time. May be used while the file is written, and from any thread.

    Args:
        path: Of a file that `DataService.record` wrote.

    Raises:
        NotFoundError: there is no such file.
        FailedPreconditionError: it is something else, or was written by a newer dsnb.
        DataLossError: by each method, where the file is damaged.

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
            raise explained(error) or _not_ours(self.path, str(error)) from error
        try:
            _check(self._database, self.path)
        except sqlite3.Error as error:
            self._database.close()
            raise _not_ours(self.path, str(error)) from error

    def check(self) -> None:
        """Look through the whole file for damage, but for that of single snapshots, which are left out.

        Raises:
            DataLossError: the file is damaged.
        """
        (found,) = self._asked("PRAGMA quick_check(1)")[0]
        if found != "ok":
            raise _damaged(self.path, " ".join(str(found).split()))

    def times(self) -> list[float]:
        """The times of all snapshots, in seconds since the epoch, the oldest first.

        Raises:
            DataLossError: the file is damaged.
        """
        rows = self._asked("SELECT time FROM snapshots ORDER BY time")
        return [time for (time,) in rows if isinstance(time, float)]

    def at(self, time: float) -> Snapshot:
        """The service as it was: the newest snapshot that is not younger than `time`, else the first.

        Snapshots that are damaged are passed over.

        Raises:
            NotFoundError: nothing was kept yet.
            DataLossError: the file is damaged.
        """
        there = False
        for first, then in ((_NOT_AFTER, _BEFORE), (_FROM, _AFTER)):
            row = self._row(first, time)
            while row is not None:
                there = True
                if (snapshot := _unpacked(row)) is not None:
                    return snapshot
                row = self._row(then, row[0])
        if there:
            raise _damaged(self.path, "none of its snapshots can be read")
        raise NotFoundError(f"nothing was kept in {self.path} yet", hint="wait for the first snapshot")

    def between(self, first: float, last: float) -> Iterator[Snapshot]:
        """The snapshots from one time to another, both included, the oldest first.

        Snapshots that are damaged are left out; a warning at the end tells how many.

        Raises:
            DataLossError: the file is damaged.
        """
        damaged = 0
        row = self._row(_FROM, first)
        while row is not None and row[0] <= last:
            snapshot = _unpacked(row)
            if snapshot is None:
                damaged += 1
            else:
                yield snapshot
            row = self._row(_AFTER, row[0])
        if damaged:
            are = "snapshot of {} is" if damaged == 1 else "snapshots of {} are"
            warn(f"{damaged} {are.format(self.path)} damaged and left out", DataLossWarning)

    def close(self) -> None:
        """Let the file go."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _row(self, query: str, *given: float) -> tuple[float, Any] | None:
        """The first row that a query finds: its time and its packed snapshot."""
        return next((row for row in self._asked(query, *given) if isinstance(row[0], float)), None)

    def _asked(self, query: str, *given: float) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._database.execute(query, given).fetchall()
        except sqlite3.Error as error:
            raise _damaged(self.path, str(error)) from error


_FROM = "SELECT time, data FROM snapshots WHERE time >= ? ORDER BY time LIMIT 1"
_AFTER = "SELECT time, data FROM snapshots WHERE time > ? ORDER BY time LIMIT 1"
_BEFORE = "SELECT time, data FROM snapshots WHERE time < ? ORDER BY time DESC LIMIT 1"
_NOT_AFTER = "SELECT time, data FROM snapshots WHERE time <= ? ORDER BY time DESC LIMIT 1"


def _unpacked(row: tuple[float, Any]) -> Snapshot | None:
    """The snapshot of a row; None where it is damaged."""
    try:
        return decode(Snapshot, zlib.decompress(row[1]))
    except (zlib.error, DataLossError, TypeError, ValueError):
        return None


def _damaged(path: str, why: str) -> DataLossError:
    return DataLossError(
        f"the run file {path} is damaged: {why}",
        did="it was left as it is",
        hint=f"`sqlite3 {os.path.basename(path)} .recover` saves what can still be read; or use a copy of it",
    )


def _create(path: str) -> sqlite3.Connection:
    """Open a file to write to; a new one where there is none."""
    try:
        database = sqlite3.connect(path, check_same_thread=False)
        try:
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                _check(database, path)
            database.executescript(
                f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA application_id={APPLICATION};"
                f"PRAGMA user_version={VERSION};"
                "CREATE TABLE IF NOT EXISTS snapshots (time REAL PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;"
            )
        except BaseException:
            database.close()
            raise
    except sqlite3.Error as error:
        raise explained(error) or _not_ours(path, str(error)) from error
    return database


def _check(database: sqlite3.Connection, path: str) -> None:
    application, version = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in _HEADER)
    if application != APPLICATION:
        database.close()
        raise _not_ours(path, "it is another program's database")
    if version > VERSION:
        database.close()
        raise _not_ours(path, f"a newer dsnb wrote it (version {version}; this one knows {VERSION})")


_HEADER = ("application_id", "user_version")


def _not_ours(path: str, why: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{path} cannot be used as the file of a run: {why}",
        did="it was left as it is",
        hint='name a file that svc.record wrote, or a new one, as in svc.record("run.db")',
    )
