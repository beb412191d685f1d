"""How many more workers the CPUs can run."""

from __future__ import annotations

import pytest

from dsnb.monitor.processors import CpuCapacity, cpu_capacity
from dsnb.monitor.rates import Rates, WorkerRates
from dsnb.monitor.snapshot import WorkerStatus


def capacity(cpus: int, *, used: float, idle: float | None, workers: int = 1) -> CpuCapacity:
    """The CPUs of one host with some workers, each of which uses this many CPUs."""
    statuses = [
        WorkerStatus(
            name=f"w{i}",
            uid=f"u{i}",
            address=f"host:{i}",
            state="running",
            isolation="process",
            pid=i,
            tasks=1,
            cpus=cpus,
        )
        for i in range(workers)
    ]
    rates = {worker.uid: WorkerRates(used_cpus=used, idle_cpus=idle) for worker in statuses}
    return cpu_capacity(statuses, Rates(span_s=1.0, workers=rates))


@pytest.mark.parametrize(
    "cpus, used, idle, more",
    [
        (4, 1.0, 3.0, 3),
        (4, 1.0, 0.5, 0),
        (4, 1.0, None, 3),
        (4, 0.01, 3.9, None),  # waits for disks, and CPUs are idle
        (4, 0.05, 0.02, 0),  # gets no CPU, because others use all of them
        (1, 0.0, 0.0, 0),
        (0, 0.0, None, None),  # the number of CPUs is unknown
    ],
)
def test_idle_cpus_limit_the_number_of_new_workers(
    cpus: int, used: float, idle: float | None, more: int | None
) -> None:
    found = capacity(cpus, used=used, idle=idle)
    assert found.max_new_workers == more
    assert found.exhausted == (more == 0)


def test_worker_that_gets_no_cpu_on_a_busy_host_is_not_a_reason_for_more_workers() -> None:
    assert capacity(2, used=0.04, idle=0.05, workers=8).exhausted


@pytest.mark.parametrize("hosts, total", [(("a", "a"), 4), (("a", "b"), 8)])
def test_workers_share_processors_by_their_host_and_not_by_their_address(hosts: tuple[str, str], total: int) -> None:
    """Two pods of one host have two addresses; two hosts behind one address translation have one."""
    workers = [
        WorkerStatus(
            name=f"w{i}",
            uid=f"u{i}",
            address=f"10.0.0.{i if hosts == ('a', 'a') else 1}:1",
            state="running",
            isolation="process",
            pid=i,
            tasks=1,
            cpus=4,
            host_id=host,
        )
        for i, host in enumerate(hosts)
    ]
    found = cpu_capacity(workers, Rates(span_s=1.0, workers={worker.uid: WorkerRates() for worker in workers}))
    assert found.total == total
