"""The recordings in one directory: found by the key of their pipeline, locked while they are read, evicted when old.

    root/dsnb-recordings.json     the format, to recognise a newer version of dsnb
    root/<key>/about.json         the pipeline
    root/<key>/used               when it was last read, by a counter, because clocks jump
    root/<key>/expires            after how many seconds without a reader it may be removed; only if this was set
    root/<key>/lock               share-locked by all readers, so that no process removes it while it is read
    root/<key>/<number>/          a recording (`cache/recordings/directory`); only the newest is used

The lock is the kernel's and ends with its holder. On file systems where other hosts do not see the lock, a pipeline
whose recordings were used within a day is not evicted either.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dsnb.cache.recordings import removal
from dsnb.cache.recordings.backends import StoreFailed
from dsnb.cache.recordings.directory import DirectoryStore
from dsnb.cache.recordings.metadata import RecordingMetadata, first_difference, parse_metadata
from dsnb.cache.recordings.removal import size_of
from dsnb.errors import DsnbError, FailedPreconditionError, ResourceExhaustedError
from dsnb.storage import files
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.filesystem import filesystem_of

FORMAT: Final = 1
_FORMAT_FILE: Final = "dsnb-recordings.json"
_EXPIRY_FILE: Final = "expires"
_DAY_S: Final = 86_400.0
_EVICTION_S: Final = 2.0
"""Seconds to wait for a process that is evicting the folder, which it does by renaming it."""
_LOCK_POLL_S: Final = 0.01
_LOG_BYTES: Final = 16 << 10
"""The part of a limit that is reserved for files other than frames: records and the manifest."""

_FORMAT_WRITE = files.WriteFailpoints("format")
_METADATA_WRITE = files.WriteFailpoints("about")
_USED_RENAME = Failpoint("used rename")
_FOLDER_MAKE = Failpoint("shelf folder")
_EVICT = Failpoint("shelf evict")
_TRASH = Failpoint("shelf trash")
_REMOVE_STALE = Failpoint("shelf sweep")


class DirectoryRecordings:
    """The recordings of one pipeline in a directory.

    Args:
        root: The directory; created when something is recorded.
        key: The digest of everything that the recording depends on.
        metadata: The pipeline, described for explanations.
        limit: The largest total size of all recordings in the directory, in bytes; None for no limit.
        expire_s: After how many seconds without a reader the recordings expire; None for never.
        local: Whether the file system is local to this host; None to find out.
    """

    def __init__(
        self,
        root: str,
        key: str,
        metadata: RecordingMetadata,
        *,
        limit: int | None = None,
        expire_s: float | None = None,
        local: bool | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self.folder = os.path.join(self.root, key)
        self.key = (self.root, key)
        self._metadata = metadata
        self._limit = limit
        self._local = filesystem_of(self.root).local if local is None else local
        self._expire_s = expire_s
        self._lock: int | None = None

    def newest_number(self) -> int:
        with self._translate_errors():
            check_format(self.root)
            if self._lock is None:
                self._evict_expired()
            return max(recording_numbers(self.folder), default=0)

    def open(self, number: int) -> DirectoryStore:
        self._lock_for_reading()
        return DirectoryStore(_recording_path(self.folder, number), local=self._local, make_room=self._make_room)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, DsnbError):
                raise
            raise StoreFailed(files.translate_os_error(error, f"reading {self.root}")) from error

    def _lock_for_reading(self) -> None:
        """Create the folder, lock it against removal and note that it is used, as far as permissions allow."""
        if self._lock is not None:
            return
        try:
            files.make_folder(self.folder, _FOLDER_MAKE)
            if not os.path.exists(os.path.join(self.root, _FORMAT_FILE)):
                files.replace(os.path.join(self.root, _FORMAT_FILE), _format_json(), _FORMAT_WRITE)
            self._remove_older()
            self._lock = _shared_lock(self.folder)
            for folder in (self.root, self.folder):
                files.remove_stale_temporary_files(folder, _REMOVE_STALE)
            remove_trash(self.root)
            if not os.path.exists(os.path.join(self.folder, "about.json")):
                files.replace(os.path.join(self.folder, "about.json"), self._metadata.to_json(), _METADATA_WRITE)
            newest_use = max((last_read(other) for other in pipeline_folders(self.root)), default=0)
            files.replace_without_sync(os.path.join(self.folder, "used"), b"%d" % (newest_use + 1), _USED_RENAME)
            self._write_expiry()
        except OSError:
            return  # a read-only folder can still be read; an attempt to record there reports the problem

    def _write_expiry(self) -> None:
        path = os.path.join(self.folder, _EXPIRY_FILE)
        if self._expire_s is not None:
            files.replace_without_sync(path, b"%r" % self._expire_s, _USED_RENAME)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _evict_expired(self) -> None:
        """Remove expired recordings of all pipelines in the directory."""
        for folder in pipeline_folders(self.root):
            if is_expired(folder):
                with contextlib.suppress(OSError):
                    evict(folder, local=self._local)

    def _remove_older(self) -> None:
        """Remove all recordings but the newest, unless another process may be reading them."""
        older = recording_numbers(self.folder)[:-1]
        if older:
            with try_lock_exclusively(self.folder, local=self._local) as unused:
                for number in older if unused else ():
                    with _TRASH:
                        removal.remove_recordings(self.folder, f"{number:06d}")

    def explain_miss(self) -> str:
        with self._translate_errors():
            others = [other for other in pipeline_folders(self.root) if other != self.folder]
            abouts = [files.read(os.path.join(other, "about.json")) for other in others]
        return first_difference(self.root, self._metadata, filter(None, map(parse_metadata, filter(None, abouts))))

    def _make_room(self, nbytes: int) -> None:
        """Evict recordings of other pipelines, the least recently used first, until `nbytes` more fit the limit.

        Raises:
            StoreFailed: there is nothing more to evict.
        """
        if self._limit is None:
            return
        self._evict_expired()
        over = sum(map(size_of, pipeline_folders(self.root))) + nbytes + _LOG_BYTES - self._limit
        for folder in sorted(pipeline_folders(self.root), key=last_read):
            if over <= 0:
                return
            if folder != self.folder:
                over -= evict(folder, local=self._local)
        if over > 0:
            error = ResourceExhaustedError(
                f"the recordings in {self.root} would be larger than the {self._limit:,} bytes of `limit_bytes`",
                did="what is recorded stays; the rest of the pass runs the pipeline",
                hint="raise `limit_bytes`, or remove recordings: dsnb cache rm",
            )
            raise StoreFailed(error)

    def close(self) -> None:
        """Unlock the folder, so that other processes may remove it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            if self._expire_s is not None:
                with contextlib.suppress(OSError):
                    os.utime(os.path.join(self.folder, "used"))  # expiry counts from the end of the last read
            os.close(lock)


def check_format(root: str) -> None:
    """Check which version of dsnb wrote a directory.

    Raises:
        FailedPreconditionError: a newer version wrote it.
    """
    data = files.read(os.path.join(root, _FORMAT_FILE))
    if data is None:
        return
    try:
        version = int(json.loads(data)["format"])
    except (ValueError, TypeError, KeyError):
        return  # a file whose content was lost; the recordings have checksums of their own
    if version > FORMAT:
        raise FailedPreconditionError(
            f"the recordings in {root} were written by a newer version of dsnb (format {version}, here {FORMAT})",
            did="nothing there was read or changed",
            hint="update dsnb here, or give `cache` another directory",
        )


def _format_json() -> bytes:
    return json.dumps({"format": FORMAT}).encode()


def _shared_lock(folder: str) -> int:
    """Lock a folder for reading; create it again if it was evicted meanwhile.

    Raises:
        OSError: the system's error; BlockingIOError if a process holds the lock for eviction for too long, for example
            because it is suspended. The folder is then read without a lock; if it is removed, the reader produces the
            rest.
    """
    while True:
        files.make_folder(folder, _FOLDER_MAKE)
        path = os.path.join(folder, "lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _wait_for_lock(descriptor)
            os.utime(descriptor)  # on file systems without locks between hosts, this shows the use to other hosts
            # The file may have been evicted between `open` and `flock`: then the lock is on a file without a name.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    deadline = time.monotonic() + _EVICTION_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOCK_POLL_S)


def _open_lock(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)  # network file systems need write access for an exclusive lock
    except FileNotFoundError:
        raise
    except OSError:  # a read-only folder
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def try_lock_exclusively(folder: str, *, local: bool = True) -> Iterator[bool]:
    """Lock a folder during the block, if no process reads its recordings; yields whether it is locked."""
    try:
        descriptor = _open_lock(os.path.join(folder, "lock"))
    except FileNotFoundError:
        yield True  # the process that created the folder died before it used it
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield local or time.time() - os.fstat(descriptor).st_mtime > _DAY_S
    finally:
        os.close(descriptor)


def evict(folder: str, *, local: bool = True) -> int:
    """Remove all recordings of one pipeline; returns the number of bytes freed.

    Returns 0 and removes nothing if a process reads them, or if the folder holds files that dsnb did not write.
    """
    with try_lock_exclusively(folder, local=local) as unused:
        if not unused or removal.foreign_files(folder):
            return 0
        nbytes = size_of(folder)
        # Rename first, so that no process finds the folder half removed.
        trash = os.path.join(os.path.dirname(folder), f".trash-{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):
            with _EVICT:
                os.rename(folder, trash)
            with _TRASH:
                removal.remove_recordings(trash)
        return nbytes


def remove_trash(root: str) -> None:
    """Remove what is left of evictions whose processes died."""
    for name in files.names_in(root):
        if removal.is_trash(name):
            removal.remove_recordings(os.path.join(root, name))


def pipeline_folders(root: str) -> list[str]:
    """The folders of all pipelines in a directory."""
    found = (os.path.join(root, name) for name in files.names_in(root) if removal.is_key(name))
    return [path for path in found if not os.path.islink(path) and recording_numbers(path)]


def _recording_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number:06d}")


def recording_numbers(folder: str) -> list[int]:
    """The numbers of a pipeline's recordings, in ascending order."""
    return sorted(int(name) for name in files.names_in(folder) if name.isdigit())


def last_read(folder: str) -> int:
    """The counter value of the last read of a folder; 0 if it is not known."""
    data = files.read(os.path.join(folder, "used")) or b""
    return int(data) if data.isdigit() else 0


def is_expired(folder: str) -> bool:
    """Whether a folder has not been read for as long as its last reader asked to keep it."""
    data = files.read(os.path.join(folder, _EXPIRY_FILE))
    try:
        return data is not None and time.time() - os.stat(os.path.join(folder, "used")).st_mtime > float(data)
    except (ValueError, FileNotFoundError):
        return False
