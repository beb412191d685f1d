"""How many more workers the CPUs of the present workers' hosts can run.

The estimate for a new worker is the average CPU use of the present ones. If the system reports how idle its CPUs are,
other users of the CPUs (trainers, other services, other people) are taken into account; otherwise only the workers' own
processes are. If workers use hardly any CPU although some are idle, they wait for disks or networks, and the CPUs do
not limit their number. If no CPU is idle, other processes take all of it, and more workers would get none either.

Pure: no clock, no service.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dsnb.monitor.rates import Rates
from dsnb.monitor.snapshot import WorkerStatus

_NEGLIGIBLE_CPUS = 0.1
"""CPUs; a worker that uses less, or a host with less idle, counts as using or having none."""


class CpuCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs of the hosts of some workers, and how many are free.

    Attributes:
        total: The number of CPUs of all hosts; 0 if unknown.
        free: How many of them are idle.
        cpus_per_worker: How many of them one worker uses, on average.
    """

    total: int
    free: float
    cpus_per_worker: float

    @property
    def exhausted(self) -> bool:
        """Whether one more worker would only compete with the present ones for the CPUs."""
        return self.max_new_workers == 0

    @property
    def max_new_workers(self) -> int | None:
        """How many more workers could run at full speed; None if no limit is known."""
        if not self.total:
            return None
        if self.cpus_per_worker < _NEGLIGIBLE_CPUS:
            return 0 if self.free < _NEGLIGIBLE_CPUS else None
        return int(self.free / self.cpus_per_worker)


def cpu_capacity(workers: Sequence[WorkerStatus], between: Rates) -> CpuCapacity:
    """The CPUs on the hosts of these workers, and how many are free, from the rates between two snapshots."""
    hosts: dict[str, list[WorkerStatus]] = {}
    for worker in workers:
        hosts.setdefault(worker.host_id or worker.address.rpartition(":")[0], []).append(worker)
    used = {name: _used_cpus(here, between) for name, here in hosts.items()}
    return CpuCapacity(
        total=sum(max(worker.cpus for worker in here) for here in hosts.values()),
        free=sum(_free_cpus(here, used[name], between) for name, here in hosts.items()),
        cpus_per_worker=sum(used.values()) / len(workers) if workers else 0.0,
    )


def _used_cpus(workers: Sequence[WorkerStatus], between: Rates) -> float:
    """CPUs that the processes of these workers use; a process is counted once, because thread workers share one."""
    return sum({worker.pid: between.worker(worker.uid).used_cpus for worker in workers}.values())


def _free_cpus(workers: Sequence[WorkerStatus], used: float, between: Rates) -> float:
    unused = max(worker.cpus for worker in workers) - used
    reported_idle = [idle for worker in workers if (idle := between.worker(worker.uid).idle_cpus) is not None]
    return max(0.0, min([unused, *reported_idle]))
