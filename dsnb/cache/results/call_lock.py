"""Runs one call at a time for each key, among all threads and processes that use one cache.

A call locks one byte of a file, at an offset derived from its key. The kernel drops the lock when the holder dies, so
that a dead process never makes others wait, and processes need not know each other. Locks of open file descriptions
exist on Linux only; on other systems identical calls may be computed at the same time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_SET_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, process
_FIRST_POLL_S: Final = 0.002
_LONGEST_POLL_S: Final = 0.1
_WARN_AFTER_S: Final = 5.0

_held_locks = threading.local()


@contextmanager
def call_lock(file: Path, key: str, call: str) -> Iterator[bool]:
    """Compute a key exclusively during the block.

    Args:
        file: The lock file; created if it does not exist.
        key: Hexadecimal digits.
        call: The call as text, for the log.

    Yields:
        Whether another thread or process held the lock meanwhile.
    """
    held: set[tuple[Path, str]] = _held_locks.__dict__.setdefault("held", set())
    descriptor = (
        -1 if (file, key) in held else _open_lock_file(file)
    )  # no lock for a function that calls itself with the same key: it would wait for itself
    if descriptor < 0:
        yield False
        return
    offset = int(key[:15], 16)
    held.add((file, key))
    try:
        yield _wait(descriptor, offset, call)
    finally:
        held.discard((file, key))
        # Unlock explicitly: a process forked during the call shares the open file, so `close` would keep the lock.
        _set_lock(descriptor, fcntl.F_UNLCK, offset)
        os.close(descriptor)


def _open_lock_file(file: Path) -> int:
    if _SET_LOCK is None:
        return -1
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:  # a read-only folder: nothing is stored there, so there is nothing to wait for
        return -1


def _wait(descriptor: int, offset: int, call: str) -> bool:
    began, pause, warned = time.monotonic(), _FIRST_POLL_S, False
    waited = False
    while not _set_lock(descriptor, fcntl.F_WRLCK, offset):
        waited = True
        if not warned and time.monotonic() - began > _WARN_AFTER_S:
            warned = True
            logger.warning("%s is being computed by another thread or process: waiting for its result", call)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL_S)
    return waited


def _set_lock(descriptor: int, kind: int, offset: int) -> bool:
    """Lock or unlock a byte; False if another descriptor has locked it."""
    assert _SET_LOCK is not None
    try:
        fcntl.fcntl(descriptor, _SET_LOCK, struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: the byte is locked
        return False
    except OSError as error:  # the file system does not support such locks
        logger.debug("identical calls are not waited for: %s", error)
        return True
    return True
