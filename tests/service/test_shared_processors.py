"""Several jobs on the same workers share the processors fairly, whatever the number of their threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.errors import InvalidArgumentError
from tests.support.cluster import Cluster
from tests.support.competing import burn, loop, read
from tests.support.reading import run_in_threads
from tests.support.waiting import wait_for

WATCH_S = 2.0
pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="only Linux tells how long a thread ran and waited"
)


def made(service: Any) -> dict[str, int]:
    return {job.name: job.produced for job in service.status().jobs}


def ratio(service: Any, one: str, other: str) -> float:
    """How many elements one job makes for each of another, in the next seconds."""
    before = made(service)
    time.sleep(WATCH_S)  # measured over a span, as a person would
    after = made(service)
    return (after[one] - before[one]) / max(1, after[other] - before[other])


def reaches(service: Any, one: str, other: str, least: float, most: float) -> None:
    """Wait until one job makes so many elements for each of another; on a busy machine that takes longer."""
    seen: list[float] = []

    def there() -> bool:
        seen.append(ratio(service, one, other))
        return least <= seen[-1] <= most

    wait_for(there, what=f"{least} to {most} elements of {one} for each of {other}; seen: {seen}", timeout=90)


@pytest.mark.slow
@pytest.mark.parametrize("function", [burn, loop])
def test_a_job_with_one_thread_gets_about_as_much_as_one_with_six(function: Callable[[int], int]) -> None:
    with dsnb.start(workers=1, isolation="process") as service, ExitStack() as reading:
        reading.enter_context(read(service, "wide", function, 6))
        reading.enter_context(read(service, "narrow", function, None))
        reaches(service, "narrow", "wide", 0.6, 1.6)


@pytest.mark.slow
def test_a_job_gets_as_much_more_as_its_weight_says() -> None:
    with dsnb.start(workers=1, isolation="process") as service, ExitStack() as reading:
        reading.enter_context(read(service, "light", burn, 4))
        reading.enter_context(read(service, "heavy", burn, 4, weight=4))
        reaches(service, "heavy", "light", 2.5, 6.0)
        assert service.status().job("heavy").weight == 4.0


@pytest.mark.slow
def test_a_job_is_held_back_only_as_long_as_another_one_runs() -> None:
    with dsnb.start(workers=1, isolation="process") as service, read(service, "wide", burn, 6):

        def held_back_ns() -> int:
            return sum(task.held_back_ns for task in service.status().job("wide").tasks)

        def free() -> bool:
            before = held_back_ns()
            time.sleep(1.0)
            return held_back_ns() == before > 0

        with read(service, "narrow", burn, None, weight=3):
            wait_for(held_back_ns, what="the job to be held back", timeout=90)
        wait_for(free, what="the job to be held back no more", timeout=30)


@pytest.mark.slow
def test_each_element_of_jobs_that_are_held_back_comes_once() -> None:
    with dsnb.start(workers=2, isolation="process") as service:

        def epoch(name: str, threads: int, weight: float) -> list[int]:
            data = dsnb.Dataset.range(400).map(burn, num_parallel_calls=threads).batch(3).unbatch()
            share = dsnb.distribute("distributed_epoch", service, job_name=name, weight=weight)
            return sorted(int(number) for number in data.apply(share))

        got = run_in_threads(
            [lambda: epoch("a", 6, 1.0), lambda: epoch("b", 2, 3.0), lambda: epoch("c", 1, 1.0)], 120.0
        )
    assert got == [list(range(400))] * 3


def test_the_readers_of_a_job_agree_on_its_weight() -> None:
    with Cluster(1) as cluster:
        data = dsnb.Dataset.range(10)
        with iter(data.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="a", weight=2))) as elements:
            next(elements)
            other = data.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="a"))
            with pytest.raises(InvalidArgumentError, match="Existing weight: <2>; got <1>"):
                next(iter(other))


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), "2", None])
def test_a_weight_is_a_positive_number(weight: Any) -> None:
    with Cluster(0) as cluster, pytest.raises(InvalidArgumentError, match="`weight`"):
        dsnb.distribute("parallel_epochs", cluster.service, weight=weight)
