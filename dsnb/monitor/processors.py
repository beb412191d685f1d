"""How many workers the processors of their hosts have room for.

A worker needs as much of a processor as those that are there use, on average. Where the system tells how idle its
processors are, whoever else uses them (trainers, other services, other people) is counted; else only what the workers'
own processes use. Workers that use hardly any processor, since they wait for disks or others, have room anywhere.

Pure: no clock, no service.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.dataclass import dataclass
from dsnb.monitor.rates import Rates
from dsnb.monitor.snapshot import WorkerStatus

_NEGLIGIBLE_CPUS = 0.1
"""A worker that uses less of a processor than this can share one with many others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCapacity:
    """What the hosts of some workers have, and have left.

    Attributes:
        total: Processors, all in all; 0 where that is not known.
        free: How many of them have nothing to do.
        cpus_per_worker: How many of them one worker uses.
    """

    total: int
    free: float
    cpus_per_worker: float

    @property
    def exhausted(self) -> bool:
        """Whether one more worker would only take turns with those that are there."""
        return self.max_new_workers == 0

    @property
    def max_new_workers(self) -> int | None:
        """How many more workers could really work at the same time; None where nothing speaks against any number."""
        return (
            None if not self.total or self.cpus_per_worker < _NEGLIGIBLE_CPUS else int(self.free / self.cpus_per_worker)
        )


def cpu_capacity(workers: Sequence[WorkerStatus], between: Rates) -> CpuCapacity:
    """What is left of the processors on which these workers run."""
    hosts: dict[str, list[WorkerStatus]] = {}
    for worker in workers:
        hosts.setdefault(worker.address.rpartition(":")[0], []).append(worker)
    used = {name: _used_cpus(here, between) for name, here in hosts.items()}
    return CpuCapacity(
        total=sum(max(worker.cpus for worker in here) for here in hosts.values()),
        free=sum(_free_cpus(here, used[name], between) for name, here in hosts.items()),
        cpus_per_worker=sum(used.values()) / len(workers) if workers else 0.0,
    )


def _used_cpus(workers: Sequence[WorkerStatus], between: Rates) -> float:
    """Processors that the processes of these workers use; thread workers share one."""
    return sum({worker.pid: between.worker(worker.uid).used_cpus for worker in workers}.values())


def _free_cpus(workers: Sequence[WorkerStatus], used: float, between: Rates) -> float:
    unused = max(worker.cpus for worker in workers) - used
    reported_idle = [idle for worker in workers if (idle := between.worker(worker.uid).idle_cpus) is not None]
    return max(0.0, min([unused, *reported_idle]))
