"""Explains errors caused by limits of the system: too many open files, no more threads.

The system's own errors name neither the limit nor a remedy, and some of them appear as something else.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections import Counter
from collections.abc import Iterator

from dsnb.errors import ResourceExhaustedError, mark_out_of_band

_NO_THREAD = "can't start new thread"
_NO_DATABASE = "unable to open database file"
_MAX_DESCRIPTORS_CHECKED = 1 << 20
_RESERVED_DESCRIPTORS = 8


def check_files() -> None:
    """Check that this process may open more files, before calls that abort the process otherwise, as gRPC's core does.

    Raises:
        ResourceExhaustedError: only a few more files may be opened.
    """
    if nearly_out_of_files():
        raise _too_many_files_error()


def limit_error(error: BaseException) -> ResourceExhaustedError | None:
    """Return the explanation of an error that was caused by a limit; None for any other error.

    Example:
        >>> limit_error(OSError(errno.EMFILE, "Too many open files")).what.partition(":")[0]
        'too many files are open'
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return _too_many_files_error()
    if _NO_DATABASE in str(error) and nearly_out_of_files():  # SQLite does not give the cause
        return _too_many_files_error()
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return _too_many_threads_error()
    return None


def describe_os_error(error: OSError) -> str:
    """Return the text of a system error, with the numbers if it was caused by a limit."""
    limit = limit_error(error)
    return limit.what if limit is not None else error.strerror or str(error)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        ResourceExhaustedError: the system starts no more threads. It is marked as out of band: no element failed.
    """
    try:
        thread.start()
    except RuntimeError as error:
        limit = limit_error(error)
        if limit is None:
            raise
        raise mark_out_of_band(limit) from None


# ---- files


def open_files_text() -> str:
    """A sentence with the number of open files of this process, and its limit."""
    kinds = Counter(_kinds())
    limit = _soft_limit("RLIMIT_NOFILE")
    most = "" if limit is None else f" and may have {limit:,} (ulimit -n)"
    sockets = f", sockets among them: {kinds['socket']:,}" if kinds["socket"] else ""
    return f"process {os.getpid()} has {sum(kinds.values()):,} open{most}{sockets}"


def _too_many_files_error() -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"too many files are open: {open_files_text()}",
        did="the operation that needed another one failed",
        hint="close files and iterators that are not used any more, or raise the limit: `ulimit -n 4096` in the shell "
        "that starts Python, or in Python `resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))`",
    )


def _kinds() -> Iterator[str]:
    """Yield "socket" or "file" for each open descriptor. Listing /proc instead would need another descriptor."""
    for descriptor in range(min(_soft_limit("RLIMIT_NOFILE") or _MAX_DESCRIPTORS_CHECKED, _MAX_DESCRIPTORS_CHECKED)):
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            continue
        yield "socket" if stat.S_ISSOCK(mode) else "file"


def nearly_out_of_files() -> bool:
    """Whether fewer files than a connection or a database needs may still be opened."""
    limit = _soft_limit("RLIMIT_NOFILE")
    return (
        limit is not None
        and limit <= _MAX_DESCRIPTORS_CHECKED
        and sum(1 for _ in _kinds()) + _RESERVED_DESCRIPTORS > limit
    )


# ---- threads


def _too_many_threads_error() -> ResourceExhaustedError:
    limits = "; ".join(_thread_limits()) or "no limit is known; the system may be out of memory"
    return ResourceExhaustedError(
        f"the system starts no more threads: process {os.getpid()} has {_threads():,} ({limits})",
        did="the operation that needed another one failed; everything else continues",
        hint="ask for fewer at once (num_parallel_calls, workers), stop services and iterators that are not used any "
        "more, or raise the limit",
    )


def _threads() -> int:
    found = _read("/proc/self/status").partition("\nThreads:")[2].split(maxsplit=1)
    return int(found[0]) if found else threading.active_count()


def _thread_limits() -> Iterator[str]:
    user, memory = _soft_limit("RLIMIT_NPROC"), _soft_limit("RLIMIT_AS")
    if user is not None:
        yield f"this user may have {user:,} processes and threads (ulimit -u)"
    most = _read("/sys/fs/cgroup/pids.max").strip()
    if most.isdigit():
        there = _read("/sys/fs/cgroup/pids.current").strip() or "?"
        yield f"this container may have {int(most):,}, and has {there} (pids.max)"
    if memory is not None:
        yield f"this process may have {memory >> 20:,} MiB of addresses (ulimit -v), and each thread takes some"


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _soft_limit(name: str) -> int | None:
    """A soft limit of this process; None if there is none."""
    found: int = resource.getrlimit(getattr(resource, name))[0]
    return None if found == resource.RLIM_INFINITY else found
