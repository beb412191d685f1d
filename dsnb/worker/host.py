"""Operating system settings and figures of a worker: malloc, thread switching, exit with the owner, memory, latency.

Only worker processes change settings. A worker in a thread leaves the user's kernel unchanged.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_MIB = 1 << 20
_SWITCH_INTERVAL_S = 0.001
# From glibc's malloc.h and Linux's prctl.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_SET_PARENT_DEATH_SIGNAL = 1
_PROBE_SLEEP_S = 0.0005
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for the next batch, if the C library has `mallopt`.

    By default glibc takes batches of megabytes from the kernel and returns them each time, which costs a third of the
    system time. Both thresholds have to be set: one alone turns off glibc's own adaptation and is worse than none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 64 * _MIB)
        mallopt(_TRIM_THRESHOLD, 256 * _MIB)


def set_switch_interval() -> None:
    """Let threads that wait for the GIL get it after 1 ms instead of 5 ms.

    User code in pure Python holds the GIL for a whole interval each time a sending thread needs it, which is two or
    three times for each message.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when the thread that started it ends.

    The last of three ways in which a worker ends with its owner, after the end of standard input and the check of
    the parent's id: it also works while user code holds the GIL, when no other code here can run.

    Args:
        parent: The id of the process that started this one, which may have ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # The parent may have ended before prctl took effect; then no signal comes.
    if os.getppid() != parent:
        os._exit(1)


def memory_bytes() -> int:
    """Bytes of memory of this host, or of this container if its limit is lower; 0 if unknown."""
    limits = [_memory_of_host(), *map(_number_in, _CONTAINER_LIMITS)]
    return min((limit for limit in limits if limit), default=0)


def _memory_of_host() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _number_in(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return 0


def memory_kills() -> int:
    """How many processes the kernel's OOM killer has killed so far, in this container and on this host."""
    return sum(_counter(path, "oom_kill") for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"))


def _counter(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            fields = (line.split() for line in file)
            return next((int(value) for key, value in fields if key == name), 0)
    except (OSError, ValueError):
        return 0


def rss_bytes() -> int:
    """Bytes of resident memory of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class LatencyProbe:
    """Measures how late a thread of this process resumes after a sleep, because other threads hold the GIL.

    Attributes:
        late_ns: The total delay in nanoseconds.
        samples: The number of measurements.
    """

    def __init__(self) -> None:
        self.late_ns = self.samples = 0

    def measure(self) -> None:
        """Sleep for 0.5 ms and add the delay. Time in which the thread waited for a processor does not count."""
        queued, began = _queued_ns(), time.perf_counter_ns()
        time.sleep(_PROBE_SLEEP_S)
        took = time.perf_counter_ns() - began - int(_PROBE_SLEEP_S * 1e9)
        self.late_ns += max(0, took - (_queued_ns() - queued))
        self.samples += 1


def _queued_ns() -> int:
    """Nanoseconds that this thread has spent ready to run but waiting for a processor; 0 if unknown."""
    times = thread_times(threading.get_native_id())
    return times[1] if times is not None else 0


def thread_times(native_id: int) -> tuple[int, int] | None:
    """How long a thread of this process has run, and was ready to run and waited for a processor, in nanoseconds.

    None if it is gone, or the system does not tell.
    """
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as file:
            ran, queued, _ = file.read().split()
            return int(ran), int(queued)
    except (OSError, ValueError):
        return None
