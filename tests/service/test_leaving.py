"""Workers that leave in the middle of a finite DYNAMIC epoch: each element comes once, also of batches and shuffles."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import pytest

import dsnb
from dsnb.errors import FailedPreconditionError
from tests.support.cluster import Cluster
from tests.support.leaving import PIPELINES, RUNS, WITH_AND_WITHOUT, check_leaving
from tests.support.marks import soak
from tests.support.processes import is_running
from tests.support.reading import first
from tests.support.waiting import wait_for

GONE_S = 60.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=3) as cluster:
        yield cluster


# ---- ways to leave


def leave(pipeline: str) -> None:
    with Cluster(workers=3) as cluster:
        check_leaving(cluster.service, pipeline, [partial(worker.leave, GONE_S) for worker in cluster.workers[:2]])
        assert [worker.stopped for worker in cluster.workers] == [True, True, False]


def stop(pipeline: str) -> None:
    with Cluster(workers=3) as cluster:
        check_leaving(cluster.service, pipeline, [worker.stop for worker in cluster.workers[:2]])


def scale_down(pipeline: str, isolation: Literal["thread", "process"]) -> None:
    with dsnb.start(workers=3, isolation=isolation) as service:

        def scale() -> None:
            service.scale(1)
            wait_for(lambda: len(service.status().workers) == 1, what="two workers to leave", timeout=GONE_S)

        check_leaving(service, pipeline, [scale])


def drain(pipeline: str) -> None:
    with dsnb.start(workers=3, isolation="process") as service:

        def drain_one(name: str) -> None:
            service.drain(name)
            wait_for(
                lambda: name not in {worker.name for worker in service.status().workers},
                what=f"{name} to leave",
                timeout=GONE_S,
            )

        check_leaving(service, pipeline, [partial(drain_one, name) for name in ("w0", "w1")])


def sigterm(pipeline: str) -> None:
    with dsnb.start(workers=2, isolation="process") as service:
        victim = service.status().workers[0].pid

        def terminate() -> None:
            os.kill(victim, signal.SIGTERM)
            wait_for(lambda: not is_running(victim), what="the worker to end", timeout=GONE_S)

        check_leaving(service, pipeline, [terminate])


WAYS: dict[str, Callable[[str], None]] = {
    "leave": leave,
    "stop": stop,
    "scale down threads": partial(scale_down, isolation="thread"),
    "scale down processes": partial(scale_down, isolation="process"),
    "drain": drain,
    "SIGTERM": sigterm,
}


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", WITH_AND_WITHOUT)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_leave_loses_and_doubles_nothing(way: str, pipeline: str) -> None:
    WAYS[way](pipeline)


@pytest.mark.soak
@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("pipeline", WITH_AND_WITHOUT)
@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_leave_loses_or_doubles_anything_in_ten_runs(way: str, pipeline: str, run: int) -> None:
    WAYS[way](pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("transfer", ["local", "tcp", soak("grpc")])
def test_workers_that_leave_lose_and_double_nothing(cluster: Cluster, pipeline: str, transfer: str) -> None:
    leaving = [partial(worker.leave, GONE_S) for worker in cluster.workers[:2]]
    check_leaving(cluster.service, pipeline, leaving, data_transfer_protocol=transfer)
    assert [worker.stopped for worker in cluster.workers] == [True, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_workers_whose_time_is_over_give_the_rest_back(cluster: Cluster, pipeline: str) -> None:
    in_time: list[bool] = []
    leaving = [lambda worker=worker: in_time.append(worker.leave(0.0)) for worker in cluster.workers[:2]]  # type: ignore[misc]
    check_leaving(cluster.service, pipeline, leaving, data_transfer_protocol="grpc")
    assert in_time == [False, False]


def test_a_worker_leaves_in_the_middle_of_data_without_an_end(cluster: Cluster) -> None:
    endless = dsnb.Dataset.range(1000).repeat().apply(dsnb.distribute("distributed_epoch", cluster.service))
    with iter(endless) as elements:
        first(10, elements)
        left: list[bool] = []
        leaving = threading.Thread(target=lambda: left.append(cluster.workers[0].leave(60.0)))
        leaving.start()
        while leaving.is_alive():
            next(elements)
        first(2000, elements)
    assert left == [True]


def test_an_idle_worker_leaves_at_once_and_cannot_be_started_again(cluster: Cluster) -> None:
    worker = cluster.workers[0]
    assert worker.leave(30.0)
    assert worker.stopped
    with pytest.raises(FailedPreconditionError):
        worker.start()
    wait_for(lambda: len(cluster.status().workers) == 2, what="the worker to be gone")
