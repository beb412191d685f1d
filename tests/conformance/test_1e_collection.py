"""Section 1E: clients and jobs that nobody needs any more are collected, and no others."""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from typing import Any

import pytest

import dsnb
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import JoinRequest
from dsnb.wire.methods import JOIN
from tests.conformance.conftest import MakeCluster
from tests.support.cluster import Cluster
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for

SOON = {"job_gc_check_interval_ms": 50, "task_gc_timeout_ms": 20, "job_gc_timeout_ms": 20}
KEPT = {"gc_dynamic_sharding_jobs": False}


@pytest.fixture
def collecting(cluster: MakeCluster) -> Cluster:
    """One worker, and a dispatcher that collects what was left 20 ms ago."""
    return cluster(1, dispatcher=SOON)


def reading(cluster: Cluster, mode: str = "parallel_epochs", **options: Any) -> Any:
    """A reader in the middle of a thousand elements."""
    policy = dsnb.distribute(mode, cluster.service, max_outstanding_requests=1, **options)
    elements = iter(dsnb.Dataset.range(1000).apply(policy))
    first(10, elements)
    return elements


def tasks(cluster: Cluster) -> int:
    """How many the worker has."""
    return len(cluster.workers[0].debug_state()["tasks"])


def stays(condition: Any, seconds: float) -> bool:
    """Whether something holds for so long."""
    began = time.monotonic()
    return bool(wait_for(lambda: not condition() or time.monotonic() - began > seconds, what="time") and condition())


@pytest.mark.parametrize("name", ["job", None], ids=["named", "anonymous"])
def test_line_060_gc_unused_job(collecting: Cluster, name: str | None) -> None:
    elements = reading(collecting, job_name=name)
    assert tasks(collecting) == 1
    del elements
    wait_for(lambda: tasks(collecting) == 0, what="its task to go")
    wait_for(lambda: not collecting.status().jobs, what="the job to go")


@pytest.mark.slow
def test_line_061_dont_gc_used_job(collecting: Cluster) -> None:
    unused, used, other = (reading(collecting, job_name=name) for name in ("unused", "used", "used"))
    assert tasks(collecting) == 2
    unused.close()
    used.close()
    wait_for(lambda: tasks(collecting) == 1, what="the unused job to go")
    assert stays(lambda: tasks(collecting) == 1, 0.5)
    assert len(numbers(other)) >= 1000 - 2 * 11


@pytest.mark.slow
def test_line_062_dont_gc_jobs_with_visitation_guarantees(cluster: MakeCluster) -> None:
    one = cluster(1, dispatcher={**SOON, **KEPT})
    for mode in ("parallel_epochs", "distributed_epoch"):
        reading(one, mode, job_name=mode).close()
    wait_for(lambda: tasks(one) == 1, what="the OFF job to go")
    assert stays(lambda: tasks(one) == 1, 0.5)
    [task] = one.workers[0].debug_state()["tasks"].values()
    assert task["mode"] == "DYNAMIC"
    assert [job.name for job in one.status().jobs] == ["distributed_epoch"]
    rest = numbers(reading(one, "distributed_epoch", job_name="distributed_epoch"))
    assert len(rest) >= 1000 - 3 * 11, "it goes on, and does not begin again"
    wait_for(lambda: not one.status().jobs, what="the job to go, of which nothing is left")


def test_line_063_gc_dynamic_sharding_job_if_requested(collecting: Cluster) -> None:
    """As it is here unless one asks for the contrary."""
    reading(collecting, "distributed_epoch", job_name="job").close()
    wait_for(lambda: tasks(collecting) == 0, what="its task to go")
    with reading(collecting, "distributed_epoch", job_name="job") as again:
        assert next(again) == 10


@pytest.mark.slow
def test_line_064_gc_client(cluster: MakeCluster) -> None:
    """A client that is silent for longer than it may, as its reports are further apart: it hears of it, and goes on."""
    one = cluster(1, dispatcher={"job_gc_check_interval_ms": 50, "client_timeout_ms": 50})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        elements = reading(one, job_name="job")
        got = list(range(10))
        while not caught:
            began = time.monotonic()
            wait_for(lambda began=began: time.monotonic() - began > 0.05, what="time", every=0.02)
            got.append(int(next(elements)))
        got += numbers(elements)
    assert all("client_timeout_ms" in str(warning.message) for warning in caught)
    assert got == list(range(1000))


@pytest.mark.slow
def test_line_065_keep_client_alive_before_reading(cluster: MakeCluster) -> None:
    one = cluster(1, dispatcher={"client_timeout_ms": 1_500, "job_gc_check_interval_ms": 50})
    elements = iter(dsnb.Dataset.range(1000).apply(dsnb.distribute("parallel_epochs", one.service))).start()
    assert stays(lambda: len(one.status().jobs[0].tasks) == 1, 3.0)
    assert numbers(elements) == list(range(1000))


def join(cluster: Cluster, dataset_id: str) -> str:
    """Let a client in that is never heard of again."""
    with closing(open_channel(cluster.address, cluster.dispatcher.token)) as channel:
        request = JoinRequest(dataset_id=dataset_id, job_name="job", mode="OFF", compression="AUTO")
        return channel.call(JOIN, request).client_id


@pytest.mark.slow
def test_line_066_gc_missing_clients_with_small_timeout(cluster: MakeCluster) -> None:
    """The original keeps one that was never heard of, for ever; here it has as long as any other."""
    one = cluster(1, dispatcher={**SOON, "client_timeout_ms": 600})
    join(one, dsnb.register_dataset(one.service, dsnb.Dataset.range(10)))
    assert one.job("job").clients == 1
    wait_for(lambda: not one.status().jobs, what="the missing client and its job to go")
    wait_for(lambda: tasks(one) == 0, what="the task to go")


@pytest.mark.slow
def test_line_067_dont_gc_missing_clients_with_large_timeout(cluster: MakeCluster) -> None:
    one = cluster(1, dispatcher={**SOON, "client_timeout_ms": 600_000})
    join(one, dsnb.register_dataset(one.service, dsnb.Dataset.range(10)))
    assert stays(lambda: one.job("job").clients == 1, 1.0)
