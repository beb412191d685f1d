"""Writes files atomically and durably: a file is complete or absent, even after a crash of the process or the host.

Data are written to a temporary file and synced; then the file gets its name, by a rename (`replace`, the last one wins)
or by a link (`create`, the first one wins). Then the folder is synced, and only then does the call return. Data are
written with `write`, never through a mapping, so that a full disk is an error and not a signal. After a failed fsync no
part of the file may be used: the kernel may have dropped data that it could not write.

Each function takes the failpoints (`storage/failpoints`) at which tests interrupt it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dsnb.errors import (
    DsnbError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.process_identity import is_gone, this_process

_TEMPORARY_PREFIX: Final = ".aside-"
_PRIVATE_WRITE = Failpoint("private file write")
_PRIVATE_RENAME = Failpoint("private file name")
TEMPORARY_NAME: Final = r"\.aside-[0-9a-f]{12}-\d+-\d*-[0-9a-f]{8}"
"""A regular expression for the names of temporary files; files with other names are not removed."""
_STALE_AFTER_S: Final = 3600.0
"""Age at which a temporary file of another host counts as left over. Writing one never takes this long."""
_MOST_BUFFERS: Final = 512
_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class WriteFailpoints:
    """The failpoints of writing one kind of file.

    Args:
        what: The kind, such as "manifest"; the failpoints are called "manifest write" and so on.
    """

    def __init__(self, what: str) -> None:
        self.write = Failpoint(f"{what} write")
        self.sync = Failpoint(f"{what} sync")
        self.publish = Failpoint(f"{what} name")
        self.sync_folder = Failpoint(f"{what} folder")


def replace(path: str, data: bytes, failpoints: WriteFailpoints) -> None:
    """Make `data` the content of a file; a reader sees either the old content or the new one.

    Raises:
        OSError: the system's error; the old content is unchanged.
    """
    temporary = _temporary_path(path)
    try:
        with failpoints.write:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        _write_and_close(descriptor, data, failpoints)
        with failpoints.publish:
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path), failpoints.sync_folder)


def replace_without_sync(path: str, data: bytes | bytearray, failpoint: Failpoint, mode: int = 0o666) -> None:
    """Like `replace`, but not durable: after a crash of the host the file may be old, empty or missing."""
    temporary = _temporary_path(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb", buffering=0):
            write_all(descriptor, [data])
        with failpoint:
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def create(path: str, data: bytes, failpoints: WriteFailpoints) -> bool:
    """Create a file with this content, unless a file of that name exists.

    Returns:
        False if the file exists already; then nothing was changed.

    Raises:
        OSError: the system's error; no file was created.
    """
    try:
        with failpoints.write:
            # An unnamed file: if the process dies before the link, nothing is left over.
            descriptor = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in _NO_TMPFILE or not os.path.isdir(os.path.dirname(path)):
            raise
        return _create_by_name(path, data, failpoints)
    try:
        _write_and_sync(descriptor, data, failpoints)
        with failpoints.publish:
            made = _link(descriptor, path)
    finally:
        os.close(descriptor)
    if made:
        sync_folder(os.path.dirname(path), failpoints.sync_folder)
    return made


def _link(descriptor: int, path: str) -> bool:
    try:
        # `os.link` follows the link in /proc only if a `src_dir_fd` is given (python/cpython#81793).
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


def _create_by_name(path: str, data: bytes, failpoints: WriteFailpoints) -> bool:
    """`create` for file systems without unnamed files."""
    temporary = _temporary_path(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _write_and_close(descriptor, data, failpoints)
        try:
            with failpoints.publish:
                os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        os.unlink(temporary)
    sync_folder(os.path.dirname(path), failpoints.sync_folder)
    return True


def _write_and_close(descriptor: int, data: bytes, failpoints: WriteFailpoints) -> None:
    try:
        _write_and_sync(descriptor, data, failpoints)
    finally:
        os.close(descriptor)  # network file systems report delayed write errors here


def _write_and_sync(descriptor: int, data: bytes, failpoints: WriteFailpoints) -> None:
    write_all(descriptor, [data])
    with failpoints.sync:
        os.fsync(descriptor)


def write_all(descriptor: int, buffers: Iterable[Any]) -> int:
    """Write buffers one after another, from the descriptor's current offset.

    Returns:
        The number of bytes written.
    """
    waiting = [view for view in map(_flat, buffers) if view.nbytes]
    total = sum(view.nbytes for view in waiting)
    at = 0
    while at < len(waiting):
        # `writev` may write only a part of the buffers: drop what was written, and go on with the rest.
        written = os.writev(descriptor, waiting[at : at + _MOST_BUFFERS])
        while at < len(waiting) and written >= waiting[at].nbytes:
            written -= waiting[at].nbytes
            at += 1
        if written:
            waiting[at] = waiting[at][written:]
    return total


def _flat(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def sync_folder(path: str, failpoint: Failpoint) -> None:
    """Sync a folder, so that the names in it survive a crash of the host."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with failpoint:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private_file(path: str, data: bytes) -> None:
    """Make `data` the content of a file that only its owner can read (mode 0600), atomically and durably.

    Raises:
        OSError: the system's error; the old content is unchanged.
    """
    folder = os.path.dirname(path) or "."
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".private-")  # mode 0600
    try:
        with open(descriptor, "wb", buffering=0) as file, _PRIVATE_WRITE:
            write_all(file.fileno(), [data])
            os.fsync(file.fileno())
        with _PRIVATE_RENAME:
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: str, failpoint: Failpoint) -> bool:
    """Remove a file; False if it did not exist."""
    try:
        with failpoint:
            os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def make_folder(path: str, failpoint: Failpoint) -> None:
    """Create a folder and its missing parents, durably."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(os.path.dirname(folder), failpoint)


def temporary_path_in(folder: str) -> str:
    """A path for a temporary file in a folder; `remove_stale_temporary_files` removes it if this process dies."""
    return os.path.join(folder, f"{_TEMPORARY_PREFIX}{this_process().unique_id()}-{secrets.token_hex(4)}")


def _temporary_path(path: str) -> str:
    return temporary_path_in(os.path.dirname(path))


def remove_stale_temporary_files(folder: str, failpoint: Failpoint) -> int:
    """Remove the temporary files of dead processes from a folder; returns the number of files."""
    return sum(remove(path, failpoint) for path in _stale_temporary_files(folder))


def _stale_temporary_files(folder: str) -> Iterator[str]:
    for name in names_in(folder):
        if re.fullmatch(TEMPORARY_NAME, name):
            path = os.path.join(folder, name)
            gone = is_gone(name.removeprefix(_TEMPORARY_PREFIX).rpartition("-")[0])
            if gone or (gone is None and _is_old(path)):
                yield path


def _is_old(path: str) -> bool:
    try:
        return time.time() - os.stat(path).st_mtime > _STALE_AFTER_S
    except FileNotFoundError:
        return False


def names_in(folder: str) -> Sequence[str]:
    """The names in a folder, sorted; empty if the folder does not exist."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def read(path: str) -> bytes | None:
    """The content of a file; None if it does not exist. Reopens it each time, so that network file systems refetch."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except FileNotFoundError:
        return None


def translate_os_error(error: OSError, doing: str, did: str = "") -> DsnbError:
    """Translate an error of the system into one for users.

    Args:
        error: The system's error.
        doing: The operation that failed, such as "recording to /data/cache".
        did: What dsnb did about it.

    Example:
        >>> raise translate_os_error(error, "storing a result in /data/cache", "the result is not stored") from error
    """
    what = f"{doing} failed: {error.strerror or error}"
    if error.errno in _FULL:
        return ResourceExhaustedError(what, did=did, hint="free some space there, or use another folder")
    if error.errno in _FORBIDDEN:
        return PermissionDeniedError(what, did=did, hint="give a folder that this user may write to")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidArgumentError(what, did=did, hint="choose a shorter path")
    return UnavailableError(what, did=did, hint="check the disk or the mount for errors")
