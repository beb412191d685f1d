"""How readers come to a job: what both kinds of stages share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import dsnb
from dsnb.client.session import JobClock
from tests.support.cluster import Cluster
from tests.support.reading import first
from tests.support.waiting import standing_still, wait_for


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
    elements = iter(dsnb.Dataset.range(1 << 40).apply(policy))
    began = time.monotonic()
    first(3, elements)
    got, over = list[int](), threading.Event()

    def read() -> None:
        while not over.is_set():
            got.extend(first(1, elements))

    reader = threading.Thread(target=read)
    reader.start()
    cluster.service.pause("j")
    paused = standing_still(lambda: (len(got), cluster.job("j").trainers[0].wait_ns), 3.0)
    wait_for(paused, what="elements and the time of waiting to stand still for three seconds")
    before = len(got)
    cluster.service.resume("j")
    wait_for(lambda: len(got) > before, what="an element after the pause")
    over.set()
    reader.join(30.0)
    assert cluster.job("j").trainers[0].wait_ns < 1e9 * (time.monotonic() - began - 1.5), "the pause does not count"
    elements.close()  # type: ignore[attr-defined]
