"""Section 1P: workers in processes of their own, beside those of the reader's process or alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import dsnb
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import WorkerProcess
from tests.conformance.conftest import MakeCluster
from tests.support.cluster import Cluster
from tests.support.reading import numbers

READY_S = 60.0
COUNTS = [(here, there) for here in (0, 1, 3) for there in (0, 1, 3) if here + there]
Spread = Callable[[int, int], Cluster]


@pytest.fixture
def spread(cluster: MakeCluster) -> Iterator[Spread]:
    """Starts a service with workers of this process and workers in processes of their own."""
    started: list[WorkerProcess] = []

    def start(here: int, there: int) -> Cluster:
        service = cluster(here)
        config = WorkerConfig(dispatcher_address=service.address, token=service.dispatcher.token)
        for _ in range(there):
            started.append(WorkerProcess())
            started[-1].start(config, lambda _worker: None)
        for worker in started:
            worker.wait_ready(READY_S)
        return service

    yield start
    for worker in started:
        worker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("here,there", COUNTS)
def test_line_252_all_workers_are_read(spread: Spread, here: int, there: int) -> None:
    service = spread(here, there).service
    dataset = dsnb.Dataset.range(10).map(lambda x: x + 1)
    elements = numbers(dataset.apply(dsnb.distribute("parallel_epochs", service)))
    assert Counter(elements) == dict.fromkeys(range(1, 11), here + there)


@pytest.mark.slow
def test_line_252_static_shards_in_several_processes(spread: Spread) -> None:
    service = spread(1, 2).service
    for mode in (dsnb.ShardingPolicy.DATA, dsnb.ShardingPolicy.DYNAMIC):
        shuffled = dsnb.Dataset.range(100).shuffle(100)
        assert sorted(numbers(shuffled.apply(dsnb.distribute(mode, service)))) == list(range(100))
    only_here = dsnb.distribute("parallel_epochs", service, target_workers="LOCAL")
    assert numbers(dsnb.Dataset.range(10).apply(only_here)) == list(range(10))
