"""What is used of the hosts of workers, in words: the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from dsnb.monitor.formatting import format_bytes
from dsnb.monitor.snapshot import Snapshot
from dsnb.wire.messages import GpuStatus, HostUse


def host_lines(snapshot: Snapshot) -> Iterator[str]:
    """A line for each host, and one for each of its GPUs."""
    for host in snapshot.hosts:
        if host.memory_total_bytes:
            yield f"  host {host.name}: {memory_text(host)} of memory used"
        for number, gpu in enumerate(host.gpus):
            yield f"  GPU {number} of {host.name} ({gpu.name}): {busy_text(gpu)}, {memory_text(gpu)} of memory used"


def memory_text(of: HostUse | GpuStatus) -> str:
    """Memory in use of all memory, as in `9.1 of 25.3 GB`."""
    used, total = format_bytes(of.memory_used_bytes), format_bytes(of.memory_total_bytes)
    number, unit = used.split()
    return f"{number} of {total}" if total.endswith(f" {unit}") else f"{used} of {total}"


def busy_text(gpu: GpuStatus) -> str:
    """How busy a GPU is, as in `87 % busy`."""
    return "busy unknown" if gpu.busy_percent < 0 else f"{gpu.busy_percent} % busy"
