"""Lists, verifies and removes what a location holds.

A location is a value for `Dataset.cache` (a directory, or the address of a server or a remote store), or the directory
of a training cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dsnb.cache.recordings import removal
from dsnb.cache.recordings.backends import PipelineRecordings, RecordingLost, RecordingStore, StoreFailed
from dsnb.cache.recordings.directory import DirectoryStore
from dsnb.cache.recordings.locations import parse_location, recordings_at
from dsnb.cache.recordings.metadata import RecordingMetadata, parse_metadata
from dsnb.cache.recordings.recording import Record, RecordingLog, SplitChunk, decode_record
from dsnb.cache.recordings.recording_directory import (
    check_format,
    evict,
    last_read,
    pipeline_folders,
    recording_numbers,
    try_lock_exclusively,
)
from dsnb.cache.recordings.removal import size_of
from dsnb.cache.recordings.split_log import SplitLog
from dsnb.errors import DataLossError, DsnbError, FailedPreconditionError, NotFoundError
from dsnb.storage import files
from dsnb.storage.filesystem import filesystem_of
from dsnb.storage.process_identity import is_gone
from dsnb.storage.urls import without_password


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The newest recording of one pipeline, or one entry of a training cache.

    Attributes:
        key: The key of the pipeline or call.
        pipeline: The pipeline in one line; in a training cache the function.
        state: "complete", "partial", or "damaged" if not even the log can be read; in a training cache "result", or
            "fingerprint" if only the fingerprint was kept.
        elements: The number of recorded elements.
        nbytes: The size in bytes; in a directory including older recordings of the same pipeline.
        in_use: Whether it is being read now; in a remote location, whether it is being written.
        used: When it was last read, by a counter: larger is later. 0 if the location does not count.
    """

    key: str
    pipeline: str
    state: str
    elements: int
    nbytes: int
    in_use: bool
    used: int


class Catalogue(Protocol):
    """The content of one location."""

    def all_keys(self) -> Sequence[str]:
        """The keys of everything in the location."""
        ...

    def entry(self, key: str) -> CatalogueEntry:
        """The entry with this key."""
        ...

    def find_problem(self, key: str) -> str:
        """Read an entry's data and compare them with their digests; returns a description of the damage, or ""."""
        ...

    def remove(self, key: str) -> int:
        """Remove an entry; returns the bytes freed: 0 if it is in use or holds files that dsnb did not write."""
        ...

    def foreign_files(self, key: str) -> Sequence[str]:
        """The files among an entry's data that dsnb did not write."""
        ...


def entries(where: str, keys: Sequence[str] = ()) -> list[CatalogueEntry]:
    """The entries in a location, the most recently read first.

    Args:
        where: The location.
        keys: Prefixes of keys; empty for all.

    Raises:
        NotFoundError: the location does not exist.
        FailedPreconditionError: a newer version of dsnb has recorded there.
        UnavailableError: the location cannot be reached.
    """
    catalogue = _catalogue(where)
    found = [catalogue.entry(key) for key in catalogue.all_keys() if not keys or key.startswith(tuple(keys))]
    return sorted(found, key=lambda entry: -entry.used)


def verify(where: str, keys: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Read the entries' data and compare them with their digests.

    Args:
        where: The location.
        keys: Prefixes of keys; empty for all.

    Yields:
        The key of each entry, with a description of its damage; "" if there is none.

    Raises:
        NotFoundError: no key begins with one of the prefixes.
    """
    catalogue = _catalogue(where)
    for key in _matching_keys(where, catalogue.all_keys(), keys):
        yield key, catalogue.find_problem(key)


def remove(where: str, keys: Sequence[str]) -> int:
    """Remove entries and their data.

    Args:
        where: The location.
        keys: Prefixes of keys; empty for all.

    Returns:
        The number of bytes freed.

    Raises:
        NotFoundError: no key begins with one of the prefixes.
        FailedPreconditionError: an entry is in use, or holds files that dsnb did not write; the others are removed.
        PermissionDeniedError: the location is read-only.
    """
    catalogue = _catalogue(where)
    chosen = _matching_keys(where, catalogue.all_keys(), keys)
    try:
        freed = sum(map(catalogue.remove, chosen))
    except StoreFailed as refusal:
        raise refusal.error from refusal
    except OSError as error:
        if isinstance(error, DsnbError):
            raise
        raise files.translate_os_error(error, f"removing recordings from {where}") from error
    busy = sorted(set(chosen) & set(catalogue.all_keys()))
    for key in busy:
        if foreign := catalogue.foreign_files(key):
            raise FailedPreconditionError(
                f"the recording {key} holds {foreign[0]!r}, which dsnb did not write",
                did=f"nothing was removed there; the others were removed, {freed:,} bytes",
                hint="move it elsewhere first",
            )
    if busy:
        raise FailedPreconditionError(
            f"{len(busy)} of {len(chosen)} recordings are in use: {', '.join(busy)}",
            did=f"the others were removed, {freed:,} bytes",
            hint="end the runs that use them first",
        )
    return freed


def _matching_keys(where: str, found: Sequence[str], keys: Sequence[str]) -> Sequence[str]:
    for key in keys:
        if not any(each.startswith(key) for each in found):
            raise NotFoundError(
                f"nothing in {without_password(where)} has a key that begins with {key!r}",
                hint="dsnb cache ls shows them",
            )
    return [each for each in found if not keys or each.startswith(tuple(keys))]


def _catalogue(where: str) -> Catalogue:
    location = parse_location("directory", where) or ""
    if "://" in location:
        return _RemoteCatalogue(location)
    if not os.path.isdir(location):
        raise NotFoundError(f"there is no directory {where}", hint="name the one that was given to `cache`")
    database = os.environ.get("DSNB_CACHE_NAME") or "cache.db"
    return (
        _TrainingCatalogue(location, database)
        if os.path.isfile(os.path.join(location, database))
        else _DirectoryCatalogue(location)
    )


# ------------------------------------------------------------------------------------------------------- recordings


def _read_log(store: RecordingStore) -> RecordingLog | SplitLog:
    records: list[Record] = []
    while (data := store.read(len(records))) is not None:
        records.append(decode_record(data))
    log = SplitLog() if any(isinstance(record, SplitChunk) for record in records) else RecordingLog()
    for record in records:
        log.apply(record)
    return log


def _state_of(log: RecordingLog | SplitLog) -> str:
    return "complete" if log.ended and not log.abandoned else "partial"


def _find_problem(store: RecordingStore) -> str:
    try:
        for ref in _read_log(store).frame_refs:
            store.verify(ref)
    except DataLossError as damage:
        return damage.what
    except (StoreFailed, RecordingLost) as refusal:
        return refusal.error.what
    finally:
        store.close()
    return ""


class _DirectoryCatalogue:
    """The recordings in a directory."""

    def __init__(self, root: str) -> None:
        check_format(root)
        self._root = root

    def _folder(self, key: str) -> str:
        return os.path.join(self._root, key)

    def _store(self, key: str) -> DirectoryStore:
        folder = self._folder(key)
        return DirectoryStore(
            os.path.join(folder, f"{recording_numbers(folder)[-1]:06d}"), local=filesystem_of(folder).local
        )

    def all_keys(self) -> Sequence[str]:
        return list(map(os.path.basename, pipeline_folders(self._root)))

    def entry(self, key: str) -> CatalogueEntry:
        folder = self._folder(key)
        about = parse_metadata(files.read(os.path.join(folder, "about.json")) or b"")
        store = self._store(key)
        try:
            log = _read_log(store)
            state, elements = _state_of(log), log.elements
        except (DataLossError, StoreFailed):
            state, elements = "damaged", 0
        finally:
            store.close()
        with try_lock_exclusively(folder) as unused:
            return CatalogueEntry(
                key=key,
                pipeline=_pipeline_name(about),
                state=state,
                elements=elements,
                nbytes=size_of(folder),
                in_use=not unused,
                used=last_read(folder),
            )

    def find_problem(self, key: str) -> str:
        return _find_problem(self._store(key))

    def remove(self, key: str) -> int:
        return evict(self._folder(key))

    def foreign_files(self, key: str) -> Sequence[str]:
        return removal.foreign_files(self._folder(key))


def _pipeline_name(about: RecordingMetadata | None) -> str:
    return about.pipeline if about is not None else "?"


class _RemoteCatalogue:
    """The recordings on a server or in a remote store."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _recordings(self, key: str) -> PipelineRecordings:
        return recordings_at(self._url, key, RecordingMetadata(pipeline="", components=()), limit=None, expire_s=None)

    def _with_recordings(self, key: str, act: Callable[[Any], Any]) -> Any:
        recordings = self._recordings(key)
        try:
            return act(recordings)
        except StoreFailed as refusal:
            raise refusal.error from refusal
        finally:
            recordings.close()

    def all_keys(self) -> Sequence[str]:
        return sorted(self._with_recordings("", lambda recordings: recordings.keys()))

    def entry(self, key: str) -> CatalogueEntry:
        return self._with_recordings(key, partial(_entry_of, key))  # type: ignore[no-any-return]

    def find_problem(self, key: str) -> str:
        return self._with_recordings(key, lambda recordings: _find_problem(recordings.open(recordings.newest_number())))  # type: ignore[no-any-return]

    def remove(self, key: str) -> int:
        entry = self.entry(key)
        if entry.in_use or self.foreign_files(key):
            return 0
        self._with_recordings(key, lambda recordings: recordings.clear())
        return entry.nbytes

    def foreign_files(self, key: str) -> Sequence[str]:
        return self._with_recordings(key, lambda recordings: recordings.foreign_files())  # type: ignore[no-any-return]


def _entry_of(key: str, recordings: Any) -> CatalogueEntry:
    store = recordings.open(recordings.newest_number())
    try:
        log = _read_log(store)
        state, nbytes = _state_of(log), sum(ref.nbytes for ref in log.frame_refs)
        elements, in_use = log.elements, _has_writer(store, log)
    except (DataLossError, RecordingLost):
        state, elements, nbytes, in_use = "damaged", 0, 0, False
    finally:
        store.close()
    pipeline = _pipeline_name(parse_metadata(recordings.metadata() or b""))
    return CatalogueEntry(
        key=key, pipeline=pipeline, state=state, elements=elements, nbytes=nbytes, in_use=in_use, used=0
    )


def _has_writer(store: RecordingStore, log: RecordingLog | SplitLog) -> bool:
    holder = log.holder if isinstance(log, RecordingLog) else None
    if holder is None or is_gone(holder.holder.rpartition("-")[0]):
        return False
    return store.read_heartbeat(holder.epoch) is not None


# --------------------------------------------------------------------------------------------------- training caches


class _TrainingCatalogue:
    """The results of a training cache."""

    def __init__(self, directory: str, name: str) -> None:
        from dsnb.cache.results.training import LARGEST_SIZE, LocalTrainingCache

        # Do not use DSNB_MAX_CACHE_SIZE, which may be 0: then there is no store. The size does not matter here: it is
        # enforced when a result is written, and none is written here.
        store = LocalTrainingCache(Path(directory), name=name, max_size=LARGEST_SIZE).store
        assert store is not None
        self._store = store
        self._rows = self._read()

    def _read(self) -> dict[str, Any]:
        """All entries by their keys, without the prefix that names the kind of a key."""
        with self._store.reading() as index:
            return {row[0].rpartition(" ")[2]: row for row in index.all_entries()}

    def all_keys(self) -> Sequence[str]:
        return list(self._read())

    def entry(self, key: str) -> CatalogueEntry:
        _, output, name, kind, nbytes, last_used, readers = self._rows[key]
        return CatalogueEntry(
            key=key,
            pipeline=name or kind or output,
            state="fingerprint" if nbytes is None else "result",
            elements=0,
            nbytes=nbytes or 0,
            in_use=bool(readers),
            used=last_used,
        )

    def find_problem(self, key: str) -> str:
        row = self._rows[key]
        if row[4] is None:
            return ""
        try:
            with self._store.leased(row[1]):
                return ""
        except DataLossError as damage:
            return damage.what

    def remove(self, key: str) -> int:
        entry = self.entry(key)
        if entry.in_use:
            return 0
        self._store.drop([self._rows[key][0]])
        return entry.nbytes

    def foreign_files(self, key: str) -> Sequence[str]:
        return ()
