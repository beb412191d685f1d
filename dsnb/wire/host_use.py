"""What is used of a host, as workers report it and the status has it."""

from __future__ import annotations

import msgspec


class GpuStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a host.

    Attributes:
        name: Its model, as the driver names it.
        busy_percent: Share of the last moment in which it computed; -1 if the driver does not tell.
        memory_used_bytes: Bytes of its memory that are in use, by all processes.
        memory_total_bytes: Bytes of its memory.
    """

    name: str = ""
    busy_percent: int = -1
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of a host together use of it.

    Attributes:
        memory_used_bytes: Bytes of memory in use, without what the system keeps of files.
        memory_total_bytes: Bytes of memory of the host, or of the container if its limit is lower; 0 if unknown.
        gpus: Its GPUs in the driver's order; empty if it has none, or if `nvidia-ml-py` is not installed there.
    """

    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    gpus: tuple[GpuStatus, ...] = ()
