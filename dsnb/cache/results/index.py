"""The entries of a training cache: which result belongs to which key, its size, and who is reading it.

A result is a folder next to the database, identified by the hash of its content. An entry is a key with the fingerprint
of its output, and refers to a result if one was kept. Every decision of a process (what to evict, add or read) is one
transaction under the database's write lock, so that two processes never decide at the same time; a process that dies
inside a transaction has decided nothing.

Every folder that dsnb makes is named here before it is made, and until it is removed: first in `folder`, with the
process that fills it; then in `result`; and after its result is gone, in `folder` again, without a holder. Only folders
that are named here are ever removed from the cache's directory.

Eviction is GreedyDual. A result's rank is the cache's floor at the time of its last use, plus the seconds of work that
each of its bytes saves. The lowest rank is evicted first, and the floor rises to it. So results that are cheap to make
again are evicted before expensive ones, and every result is evicted in the end unless it is used. Results of unknown
cost have the floor as their rank; among them this is least recently used. Recency counts uses, not seconds: no clock is
read.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from dsnb.storage.process_identity import is_gone, this_process
from dsnb.storage.sqlite import Database

_LEASE_TIMEOUT_S: Final = (
    24 * 3600.0
)  # seconds after which a lease expires if this host cannot tell whether its holder lives
_NO_HOLDER: Final = ""  # the holder of a folder that is to be removed
SCHEMA: Final = """
CREATE TABLE total (bytes INTEGER NOT NULL, floor REAL NOT NULL);
INSERT INTO total VALUES (0, 0.0);
CREATE TABLE result (
    location TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    bytes INTEGER NOT NULL,
    saves REAL NOT NULL,
    rank REAL NOT NULL,
    last_used INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX result_by_rank ON result (rank, last_used);
CREATE INDEX result_by_use ON result (last_used);
CREATE TABLE cache_entry (
    fingerprint_key TEXT PRIMARY KEY,
    output_fingerprint_key TEXT NOT NULL,
    last_used INTEGER NOT NULL,
    dsnb_version TEXT NOT NULL,
    result_location TEXT REFERENCES result ON DELETE CASCADE,
    result_type TEXT,
    name TEXT,
    note BLOB
) WITHOUT ROWID;
CREATE INDEX entry_by_output ON cache_entry (output_fingerprint_key);
CREATE INDEX entry_by_result ON cache_entry (result_location);
CREATE INDEX entry_by_use ON cache_entry (last_used);
CREATE INDEX entry_by_name ON cache_entry (name, last_used);
CREATE INDEX entry_by_version ON cache_entry (dsnb_version);
CREATE TABLE lease (number INTEGER PRIMARY KEY, location TEXT NOT NULL, holder TEXT NOT NULL, since REAL NOT NULL);
CREATE INDEX lease_by_result ON lease (location);
CREATE TRIGGER heavier AFTER INSERT ON result BEGIN UPDATE total SET bytes = bytes + NEW.bytes; END;
CREATE TRIGGER lighter AFTER DELETE ON result BEGIN UPDATE total SET bytes = bytes - OLD.bytes; END;
"""
FOLDER_SCHEMA: Final = """
CREATE TABLE folder (location TEXT PRIMARY KEY, holder TEXT NOT NULL, since REAL NOT NULL) WITHOUT ROWID;
CREATE TRIGGER left_over AFTER DELETE ON result BEGIN INSERT INTO folder VALUES (OLD.location, '', 0.0); END;
"""
MIGRATIONS: Final = (SCHEMA, FOLDER_SCHEMA)
"""For each format, the statements that lead to the next one; format 0 is an empty file."""


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and what is known about its output.

    Attributes:
        key: The fingerprint of the inputs.
        output: The fingerprint of the output.
        name: The name of the function, for explanations; None if nothing explains this entry.
        note: Further data for explanations.
    """

    key: str
    output: str
    name: str | None = None
    note: bytes | None = None


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A stored result: its folder's name, the hash of its content, and the name of its class."""

    location: str
    digest: str
    type: str


class Index:
    """Queries and changes of the entries.

    Args:
        database: The database that holds them.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    # ---------------------------------------------------------------------------------------------------- looking up

    def output_of(self, key: str) -> str | None:
        """The output fingerprint stored with a key; None if there is none."""
        found: str | None = self.database.value(
            "SELECT output_fingerprint_key FROM cache_entry WHERE fingerprint_key = ?", key
        )
        return found

    def result_of(self, output: str) -> StoredResult | None:
        """The most recently used result with this output fingerprint, of any key; None if there is none."""
        row = self.database.row(
            "SELECT location, digest, result_type FROM cache_entry JOIN result ON location = result_location"
            " WHERE output_fingerprint_key = ? ORDER BY cache_entry.last_used DESC LIMIT 1",
            output,
        )
        return row and StoredResult(location=row[0], digest=row[1], type=row[2])

    def note_of(self, key: str) -> bytes | None:
        """The note stored with a key; None if there is none."""
        found: bytes | None = self.database.value("SELECT note FROM cache_entry WHERE fingerprint_key = ?", key)
        return found

    def notes_of(self, name: str, limit: int) -> list[bytes]:
        """The notes of the entries with this name, the most recently used first."""
        return self.database.column(
            "SELECT note FROM cache_entry WHERE name = ? AND note IS NOT NULL ORDER BY last_used DESC LIMIT ?",
            name,
            limit,
        )

    def keys_of(self, name: str) -> list[str]:
        """The keys of the entries with this name."""
        return self.database.column("SELECT fingerprint_key FROM cache_entry WHERE name = ?", name)

    def all_entries(self) -> list[tuple[str, str, str | None, str | None, int | None, int, int]]:
        """All entries: key, output, name, type, bytes of the result, last use, and the number of its readers."""
        found = self.database.execute(
            "SELECT fingerprint_key, output_fingerprint_key, name, result_type, bytes, cache_entry.last_used, "
            "(SELECT count(*) FROM lease WHERE lease.location = result_location) "
            "FROM cache_entry LEFT JOIN result ON location = result_location ORDER BY cache_entry.last_used DESC"
        )
        return found.fetchall()

    def total_bytes(self) -> int:
        """The total size of all results, in bytes."""
        return int(self.database.value("SELECT bytes FROM total"))

    def locations(self) -> set[str]:
        """The folders of all results."""
        return set(self.database.column("SELECT location FROM result"))

    def versions(self) -> list[str]:
        """The versions of dsnb that wrote the entries."""
        return self.database.column("SELECT DISTINCT dsnb_version FROM cache_entry")

    def location_of(self, digest: str) -> str | None:
        """The folder that already holds exactly this content; None if there is none."""
        found: str | None = self.database.value("SELECT location FROM result WHERE digest = ?", digest)
        return found

    def unused_folders(self) -> list[str]:
        """The folders that are to be removed."""
        return self.database.column("SELECT location FROM folder WHERE holder = ?", _NO_HOLDER)

    def abandoned_folders(self) -> list[str]:
        """The folders that dead processes were filling."""
        folders = self.database.execute(
            "SELECT location, holder, since FROM folder WHERE holder != ?", _NO_HOLDER
        ).fetchall()
        return [location for location, holder, since in folders if _is_expired(holder, since)]

    def expired_leases(self) -> list[int]:
        """The leases of dead processes."""
        leases = self.database.execute("SELECT number, holder, since FROM lease").fetchall()
        return [number for number, holder, since in leases if _is_expired(holder, since)]

    # ------------------------------------------------------------------------ changes: inside a `transaction()` only

    def touch(self, output: str) -> None:
        """Mark the entries and results with this output fingerprint as most recently used."""
        now = self._next_use()
        self.database.execute("UPDATE cache_entry SET last_used = ? WHERE output_fingerprint_key = ?", now, output)
        self.database.execute(
            "UPDATE result SET last_used = ?, rank = saves + (SELECT floor FROM total) WHERE location IN"
            " (SELECT result_location FROM cache_entry WHERE output_fingerprint_key = ?)",
            now,
            output,
        )

    def _next_use(self) -> int:
        last = self.database.row("SELECT (SELECT max(last_used) FROM cache_entry), (SELECT max(last_used) FROM result)")
        return max(use or 0 for use in last) + 1

    def add_result(self, location: str, digest: str, size: int, seconds: float) -> None:
        """Add a result of `size` bytes that took `seconds` to make; its folder exists."""
        saves = seconds / max(size, 1)
        self.forget_folder(location)
        self.database.execute(
            "INSERT INTO result SELECT ?, ?, ?, ?, ? + floor, ? FROM total",
            location, digest, size, saves, saves, self._next_use(),
        )  # fmt: skip

    def add_entry(self, entry: CacheEntry, version: str, location: str | None, kind: str | None) -> None:
        """Add an entry; it replaces the entry with the same key."""
        before = self._location_of_key(entry.key)
        self.database.execute(
            "INSERT OR REPLACE INTO cache_entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            entry.key, entry.output, self._next_use(), version, location, kind, entry.name, entry.note,
        )  # fmt: skip
        self.drop_if_unused(before)

    def _location_of_key(self, key: str) -> str | None:
        found: str | None = self.database.value(
            "SELECT result_location FROM cache_entry WHERE fingerprint_key = ?", key
        )
        return found

    def evict_lowest_ranked(self, needed: int) -> list[str]:
        """Drop the results of lowest rank, with their entries, until `needed` bytes are free; returns their folders.

        Results that are being read stay. If all others are not enough, drops nothing and returns an empty list.
        """
        victims: list[tuple[str, float]] = []
        rows = self.database.execute(
            "SELECT location, rank, bytes FROM result WHERE location NOT IN (SELECT location FROM lease)"
            " ORDER BY rank, last_used"
        )
        for location, rank, size in rows:
            victims.append((location, rank))
            needed -= size
            if needed <= 0:
                break
        rows.close()
        if needed > 0:
            return []
        for location, rank in victims:
            self.database.execute("DELETE FROM result WHERE location = ?", location)
            self.database.execute("UPDATE total SET floor = max(floor, ?)", rank)
        return [location for location, _ in victims]

    def drop_if_unused(self, location: str | None) -> None:
        """Drop a result that no entry refers to and no process reads."""
        self.database.execute(
            "DELETE FROM result WHERE location = ?"
            " AND NOT EXISTS (SELECT 1 FROM cache_entry WHERE result_location = result.location)"
            " AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.location = result.location)",
            location,
        )

    def drop_key(self, key: str) -> None:
        """Remove an entry, and its result if nothing else uses it."""
        before = self._location_of_key(key)
        self.database.execute("DELETE FROM cache_entry WHERE fingerprint_key = ?", key)
        self.drop_if_unused(before)

    def drop_version(self, version: str) -> None:
        """Remove the entries that a version of dsnb wrote."""
        self.database.execute("DELETE FROM cache_entry WHERE dsnb_version = ?", version)

    def drop_oldest_without_result(self, limit: int) -> None:
        """Keep only the `limit` most recently used entries without a result: they are small, but not free."""
        self.database.execute(
            "DELETE FROM cache_entry WHERE fingerprint_key IN (SELECT fingerprint_key FROM cache_entry"
            " WHERE result_location IS NULL ORDER BY last_used DESC LIMIT -1 OFFSET ?)",
            limit,
        )

    def mark_missing(self, location: str) -> None:
        """Note that a result is missing or damaged: its entries keep only their fingerprints."""
        self.database.execute(
            "UPDATE cache_entry SET result_location = NULL, result_type = NULL WHERE result_location = ?", location
        )
        self.database.execute("DELETE FROM result WHERE location = ?", location)

    def acquire_lease(self, location: str) -> int:
        """Start to read a result: it stays until `release_lease` is called with this number, or this process ends."""
        row = self.database.execute(
            "INSERT INTO lease (location, holder, since) VALUES (?, ?, ?)",
            location,
            this_process().unique_id(),
            time.time(),
        )
        return int(row.lastrowid or 0)

    def release_lease(self, number: int) -> None:
        """End a lease; its result is dropped if nothing else uses it."""
        location = self.database.value("SELECT location FROM lease WHERE number = ?", number)
        self.database.execute("DELETE FROM lease WHERE number = ?", number)
        self.drop_if_unused(location)

    def reserve_folder(self, location: str) -> None:
        """Name a folder that this process is about to make; `add_result` turns it into a result."""
        self.database.execute("INSERT INTO folder VALUES (?, ?, ?)", location, this_process().unique_id(), time.time())

    def mark_folder_unused(self, location: str) -> None:
        """Mark a folder that no process fills any more, so that it is removed. No effect on a result's folder."""
        self.database.execute("UPDATE folder SET holder = ? WHERE location = ?", _NO_HOLDER, location)

    def forget_folder(self, location: str) -> None:
        """Note that a folder no longer exists."""
        self.database.execute("DELETE FROM folder WHERE location = ?", location)


def _is_expired(holder: str, since: float) -> bool:
    gone = is_gone(holder)
    return abs(time.time() - since) > _LEASE_TIMEOUT_S if gone is None else gone
