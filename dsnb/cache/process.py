"""Which process this is, in words that no other process of any host shares, and whether such a process is gone.

A process id alone is a trap: in containers every run may be number 1. So the boot, the namespace of process ids and
the time at which the process started go with it; of a process of another boot or namespace nobody here can tell.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from hashlib import blake2b

from dsnb.dataclass import dataclass
from dsnb.processes import start_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process.

    Attributes:
        place: A digest of the host, its boot and the namespace of process ids.
        pid: Its id there.
        started: When it started, in the kernel's ticks.
        host: The host's name, for people.
    """

    place: str
    pid: int
    started: str
    host: str

    def short(self) -> str:
        """All of it but the host's name, as a part of file names."""
        return f"{self.place}-{self.pid}-{self.started}"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def here() -> Process:
    """This process; right in forked children too."""
    return _of(os.getpid())


@lru_cache(maxsize=1)
def _of(pid: int) -> Process:
    return Process(place=_place(), pid=pid, started=start_time(pid), host=socket.gethostname())


def is_gone(short: str) -> bool | None:
    """Whether the process with this `Process.short()` has ended; None where that cannot be told from here."""
    place, _, rest = short.partition("-")
    pid, _, started = rest.partition("-")
    if place != _place() or not pid.isdigit() or not started:
        return None
    return start_time(int(pid)) != started


@lru_cache(maxsize=1)
def _place() -> str:
    parts = [socket.gethostname()]
    for read in (_boot, lambda: os.readlink("/proc/self/ns/pid")):
        try:
            parts.append(read())
        except OSError:  # without /proc the host's name has to do
            parts.append("")
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
