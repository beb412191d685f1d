"""An identifier for this process that no other process on any host shares, and a test whether such a process has ended.

A process id alone is not enough: in containers every run may have id 1. So the boot id, the pid namespace and the start
time of the process are part of it. Whether a process of another boot or namespace has ended cannot be told.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from hashlib import blake2b

import msgspec

from dsnb.processes import start_time


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one process.

    Attributes:
        pid_namespace: A digest of the host, its boot and the pid namespace.
        pid: The process id in that namespace.
        started: When the process started, in the kernel's clock ticks.
        host: The host's name, for people.
    """

    pid_namespace: str
    pid: int
    started: str
    host: str

    def unique_id(self) -> str:
        """The identity without the host's name, for use in file names."""
        return f"{self.pid_namespace}-{self.pid}-{self.started}"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> ProcessIdentity:
    """The identity of this process; also correct in forked children."""
    return _identity_of(os.getpid())


@lru_cache(maxsize=1)
def _identity_of(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid_namespace=_pid_namespace(), pid=pid, started=start_time(pid), host=socket.gethostname())


def is_gone(unique_id: str) -> bool | None:
    """Whether the process with this `ProcessIdentity.unique_id()` has ended; None if that cannot be told from here."""
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
        except OSError:  # without /proc, the host's name is all there is
            parts.append("")
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
