"""One call at a time for each key, among all threads and processes that use one cache.

A call locks the byte of a file that its key stands for. The kernel drops the lock with whoever holds it, so that a
process that dies makes nobody wait; and no process needs to know which others there are. Locks of open files are
Linux's; elsewhere each call is computed for itself.
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

_TRY: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, process
_FIRST_LOOK_S: Final = 0.002
_LONGEST_LOOK_S: Final = 0.1
_SAID_AFTER_S: Final = 5.0

_mine = threading.local()


@contextmanager
def computing(file: Path, key: str, call: str) -> Iterator[bool]:
    """Be the only one who computes a key while the block runs.

    Args:
        file: The file of locks; made if it is not there.
        key: Hexadecimal digits.
        call: The call, for people.

    Yields:
        Whether somebody else was computing it meanwhile.
    """
    held: set[tuple[Path, str]] = _mine.__dict__.setdefault("held", set())
    descriptor = -1 if (file, key) in held else _opened(file)  # a function that calls itself must not wait for itself
    if descriptor < 0:
        yield False
        return
    place = int(key[:15], 16)
    held.add((file, key))
    try:
        yield _wait(descriptor, place, call)
    finally:
        held.discard((file, key))
        # Not left to close: a process that the call has forked has the open file, too.
        _lock(descriptor, fcntl.F_UNLCK, place)
        os.close(descriptor)


def _opened(file: Path) -> int:
    if _TRY is None:
        return -1
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:  # a folder that may only be read: nothing is stored there
        return -1


def _wait(descriptor: int, place: int, call: str) -> bool:
    began, pause, said = time.monotonic(), _FIRST_LOOK_S, False
    waited = False
    while not _lock(descriptor, fcntl.F_WRLCK, place):
        waited = True
        if not said and time.monotonic() - began > _SAID_AFTER_S:
            said = True
            logger.warning("%s is being computed by another thread or process: waiting for its result", call)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_LOOK_S)
    return waited


def _lock(descriptor: int, kind: int, place: int) -> bool:
    """Lock or unlock a byte; False if somebody else has it."""
    assert _TRY is not None
    try:
        fcntl.fcntl(descriptor, _TRY, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: another has it
        return False
    except OSError as error:  # a file system without such locks
        logger.debug("identical calls are not waited for: %s", error)
        return True
    return True
