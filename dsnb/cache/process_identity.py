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
class ProcessIdentity:
    """One process.

    Attributes:
        pid_namespace: A digest of the host, its boot and the namespace of process ids.
        pid: Its id there.
        started: When it started, in the kernel's ticks.
        host: The host's name, for people.
    """

    pid_namespace: str
    pid: int
    started: str
    host: str

    def unique_id(self) -> str:
        """All of it but the host's name, as a part of file names."""
        return f"{self.pid_namespace}-{self.pid}-{self.started}"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> ProcessIdentity:
    """This process; right in forked children too."""
    return _identity_of(os.getpid())


@lru_cache(maxsize=1)
def _identity_of(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid_namespace=_pid_namespace(), pid=pid, started=start_time(pid), host=socket.gethostname())


def is_gone(unique_id: str) -> bool | None:
    """Whether the process with this `Process.short()` has ended; None where that cannot be told from here."""
    pid_namespace, _, rest = unique_id.partition("-")
    pid, _, started = rest.partition("-")
    if pid_namespace != _pid_namespace() or not pid.isdigit() or not started:
        return None
    return start_time(int(pid)) != started


@lru_cache(maxsize=1)
def _pid_namespace() -> str:
    parts = [socket.gethostname()]
    for read in (_boot_id, lambda: os.readlink("/proc/self/ns/pid")):
        try:
            parts.append(read())
        except OSError:  # without /proc the host's name has to do
            parts.append("")
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
