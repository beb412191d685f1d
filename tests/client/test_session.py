"""How readers come to a job: what both kinds of stages share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import dsnb
from dsnb.client.session import JobClock
from tests.support.cluster import Cluster
from tests.support.reading import first
from tests.support.waiting import wait_for


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(1) as cluster:
        yield cluster


def test_the_clock_of_a_job_stands_while_it_is_paused() -> None:
    clock = JobClock()
    began = clock()
    wait_for(lambda: clock() > began, what="the clock to go")
    for _ in range(2):  # whoever says it twice changes nothing
        clock.pause(paused=True)
    stood = clock()
    assert clock() == stood
    for _ in range(2):
        clock.pause(paused=False)
    assert clock() - stood < 1e9
    wait_for(lambda: clock() > stood, what="the clock to go on")


@pytest.mark.slow
def test_a_pause_is_nobodys_waiting(cluster: Cluster) -> None:
    policy = dsnb.distribute("parallel_epochs", cluster.service, job_name="j", max_outstanding_requests=4)
    elements = iter(dsnb.Dataset.range(10_000).apply(policy))
    first(3, elements)
    cluster.service.pause("j")
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.extend(first(100, elements)))
    reader.start()
    before = cluster.status().time
    wait_for(lambda: cluster.status().time > before + 3.0, what="three seconds")
    cluster.service.resume("j")
    reader.join(30.0)
    assert len(got) == 100
    assert cluster.job("j").trainers[0].wait_ns < 1.5e9
    elements.close()  # type: ignore[attr-defined]
