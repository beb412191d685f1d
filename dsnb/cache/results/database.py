"""The SQLite file of a training cache: its kind, and its errors for users."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dsnb.cache.results.index import MIGRATIONS
from dsnb.errors import (
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.filesystem import FileSystem
from dsnb.storage.sqlite import DATABASE_FULL, DatabaseKind, error_code, is_busy


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as dsnb's errors for users."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate_error(error, path) from error


def _translate_error(error: sqlite3.Error, path: Path) -> DsnbError:
    code = error_code(error)
    what = f"the database of the cache {str(path)!r} says: {error}"
    if is_busy(error):
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
            hint=f"remove {path.name} and the folders result-* next to it; everything is then computed again",
        )
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return PermissionDeniedError(
            what, did="nothing was stored", hint="set DSNB_CACHE_DIRECTORY to a folder that you may write to"
        )
    return UnavailableError(what, did="nothing was stored", hint="check the disk for errors")


def _foreign_error(path: Path) -> DsnbError:
    return FailedPreconditionError(
        f"{str(path)!r} is a database of another program",
        did="nothing in it was touched",
        hint="use a separate folder for the cache, or rename the database",
    )


def _format_error(path: Path, found: int) -> DsnbError:
    return FailedPreconditionError(
        f"the cache {str(path)!r} was written by a newer version of dsnb (format {found}, not {len(MIGRATIONS)})",
        did="nothing in it was touched",
        hint="update dsnb, or set DSNB_CACHE_DIRECTORY to another folder",
    )


def _network_error(path: Path, found: FileSystem) -> DsnbError:
    return FailedPreconditionError(
        f"the cache {str(path.parent)!r} lies on {found}, a network file system, where databases of two hosts "
        "drift apart in silence",
        did="nothing was opened",
        hint="set DSNB_CACHE_DIRECTORY to a folder on a disk of this machine",
    )


def _removed_error(path: Path) -> DsnbError:
    return FailedPreconditionError(
        f"the database {str(path)!r} was removed while the cache was open",
        did="nothing was stored",
        hint="make the cache object again, in a folder that is empty",
    )


TRAINING_CACHE: Final = DatabaseKind(
    application_id=0x64736E62,  # "dsnb"
    migrations=MIGRATIONS,
    open_error=_translate_error,
    foreign_error=_foreign_error,
    format_error=_format_error,
    network_error=_network_error,
    removed_error=_removed_error,
    busy_timeout_s=30.0,  # transactions take no longer than a few renames, but a process may be suspended inside one
    commit=Failpoint("entry commit", error=DATABASE_FULL),
)
