"""Facts about processes from the system: when one started, its host, its processors, and how long these were idle."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from math import ceil

_IDLE, _IOWAIT = 4, 5
"""Columns of a processor's line in /proc/stat."""


def start_time(pid: int) -> str:
    """When a process started, in the kernel's clock ticks; empty if it is gone or a zombie.

    A process id with its start time identifies a process even after the id is reused. Without /proc, "0" means that the
    process exists.
    """
    try:
        # A process name may contain any bytes, also parentheses and spaces: the fields begin after the last ")".
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if os.path.exists("/proc/self") or not _exists(pid) else "0"
    except ProcessLookupError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def usable_cpus() -> int:
    """The number of processors that this process may use: its affinity, or fewer if its container has a lower quota."""
    try:
        here = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        here = os.cpu_count() or 1
    return min(here, host_cpus())


def host_cpus() -> int:
    """How many processors the processes with this `host_id` share: those of the machine, or of the container."""
    there = os.cpu_count() or 1
    return max(1, min(there, ceil(_quota() or there)))


def _quota() -> float:
    """The processors of this container's quota; 0 if there is no quota."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            most, period = file.read().split()
            return int(most) / int(period)
    except (OSError, ValueError):  # no such file; or "max", which is no limit
        return 0.0


@lru_cache(maxsize=1)
def host_id() -> str:
    """An identifier that the processes share which compete for the same processors; an address does not say that.

    It is derived from the boot of the kernel, so that network namespaces and pods of one machine have the same, and
    machines behind one address do not. Containers with processors of their own (a quota) are hosts of their own.
    """
    parts = [socket.gethostname()]
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts = [file.read().strip()]
    if _quota():
        with suppress(OSError):
            parts.append(os.readlink("/proc/self/ns/cgroup"))
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def idle_ns() -> int:
    """How long the processors that this process may use were idle, summed over them; 0 if the system does not tell."""
    try:
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except (OSError, AttributeError):
        return 0
    ticks = sum(int(line[_IDLE]) + int(line[_IOWAIT]) for line in lines if line[0] in mine)
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
