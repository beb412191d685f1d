"""What a worker asks of the system that it runs on, where its process is its own: memory, and an end with its owner.

Nothing here is done to the user's kernel: a thread worker lives in it and leaves it as it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_MIB = 1 << 20
_SWITCH_INTERVAL_S = 0.001
# From glibc's malloc.h and Linux's prctl.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_SET_PARENT_DEATH_SIGNAL = 1
_PROBE_SLEEP_S = 0.0005
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def keep_freed_memory() -> None:
    """Let malloc keep what was freed for the next batch, where the C library can be told to.

    By itself glibc takes batches of megabytes from the kernel and gives them back each time, which costs a third of the
    system time. Both thresholds have to be set: one alone turns its own adaptation off and is worse than none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 64 * _MIB)
        mallopt(_TRIM_THRESHOLD, 256 * _MIB)


def set_switch_interval() -> None:
    """Let threads that wait for the interpreter have it after a millisecond instead of five.

    A function in pure Python keeps it for the whole interval, each time one of the threads that send wants it: two or
    three times for each message.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when the thread that started it is gone, on Linux.

    The last of three life lines: it also holds while user code keeps the interpreter, and nothing else here can run.

    Args:
        parent: The id of the process that started this one, which may be gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def memory_bytes() -> int:
    """The memory of this host, or of this container if it may have less; 0 where the system does not tell."""
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
    except (OSError, ValueError):  # no such file; or "max", which is no limit
        return 0


def memory_kills() -> int:
    """How many processes the system has ended for lack of memory so far, in this container and on this host."""
    return sum(_counter(path, "oom_kill") for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"))


def _counter(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            fields = (line.split() for line in file)
            return next((int(value) for key, value in fields if key == name), 0)
    except (OSError, ValueError):
        return 0


def rss_bytes() -> int:
    """This process's resident memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class LatencyProbe:
    """How late a thread of this process gets its turn: where something else holds the interpreter.

    Attributes:
        late_ns: By how much it was late, all in all.
        samples: How often that was measured.
    """

    def __init__(self) -> None:
        self.late_ns = self.samples = 0

    def measure(self) -> None:
        """Ask for a turn, and see when it comes. What the system kept it waiting for a processor does not count."""
        queued, began = _queued_ns(), time.perf_counter_ns()
        time.sleep(_PROBE_SLEEP_S)
        took = time.perf_counter_ns() - began - int(_PROBE_SLEEP_S * 1e9)
        self.late_ns += max(0, took - (_queued_ns() - queued))
        self.samples += 1


def _queued_ns() -> int:
    """How long this thread has been ready to run while others had the processors; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0
