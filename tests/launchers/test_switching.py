"""`LaunchedPool.switch` and `SwitchToProcesses`: other workers take over, and no element is lost or comes twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.dispatcher.server import DispatchServer
from dsnb.errors import FailedPreconditionError
from dsnb.launchers.launcher import LaunchedWorker, Launcher, OnExit
from dsnb.launchers.local import Threads
from dsnb.launchers.pool import LaunchedPool
from dsnb.notebook.service import DataService
from dsnb.worker.config import WorkerConfig
from tests.support.reading import run_in_threads
from tests.support.waiting import wait_for

ELEMENTS = 600
AT_FIRST = 40
"""How many elements are read before the workers are replaced."""
LONG_S = 60.0


class Service:
    """A dispatcher with two thread workers, which others can replace."""

    def __init__(self) -> None:
        self.dispatcher = DispatchServer()
        self.config = WorkerConfig(dispatcher_address=self.dispatcher.target, isolation="thread")
        self.pool = LaunchedPool(Threads(), self.dispatcher, self.config)
        self.dispatcher.set_worker_pool(self.pool)
        self.client = dsnb.connect(self.dispatcher.target, token=self.dispatcher.token)
        self.pool.scale(2)

    def switch(self) -> None:
        assert self.pool.switch(Threads(), self.config) == 2

    def workers(self) -> set[str]:
        return {worker.name for worker in self.client.status().workers}

    def stop(self) -> None:
        self.pool.stop()
        self.dispatcher.stop()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    try:
        yield service
    finally:
        service.stop()


def read_around(elements: Iterator[Any], between: Callable[[], object]) -> Counter[int]:
    """Read all elements, and do something after the first ones; how often each number came."""
    found = [int(x) for x in islice(elements, AT_FIRST)]
    between()
    return Counter([*found, *(int(x) for x in elements)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, times",
    [("distributed_epoch", 1), ("parallel_epochs", 2), (dsnb.ShardingPolicy.DATA, 1)],
    ids=["dynamic", "off", "data"],
)
def test_each_element_comes_as_often_as_without_the_replacement(service: Service, mode: Any, times: int) -> None:
    data = dsnb.Dataset.range(ELEMENTS).map(lambda x: x)
    read = data.apply(dsnb.distribute(mode, service.client, job_name="train", max_outstanding_requests=16))
    assert read_around(iter(read), service.switch) == Counter(dict.fromkeys(range(ELEMENTS), times))
    wait_for(lambda: service.workers() == {"w2", "w3"}, what="the replaced workers to leave", timeout=LONG_S)
    assert Counter(int(x) for x in read) == Counter(dict.fromkeys(range(ELEMENTS), times))


def test_batches_and_shuffles_keep_every_element(service: Service) -> None:
    data = dsnb.Dataset.range(ELEMENTS).shuffle(50, seed=3).batch(7)
    read = data.apply(dsnb.distribute("distributed_epoch", service.client, max_outstanding_requests=2))
    elements = iter(read)
    found = [next(elements)]
    service.switch()
    found += elements
    assert sorted(int(x) for batch in found for x in batch) == list(range(ELEMENTS))


def test_trainers_that_share_a_pass_both_get_all_of_it(service: Service) -> None:
    data = dsnb.Dataset.range(ELEMENTS)

    def trainer(name: str) -> Iterator[Any]:
        cache = dsnb.CrossTrainerCache(name, on_lag="spill", start_together=2)
        return iter(
            data.apply(dsnb.distribute("distributed_epoch", service.client, job_name="both", cross_trainer_cache=cache))
        )

    replaced = threading.Event()

    def replace_once() -> None:
        if not replaced.is_set():
            replaced.set()
            service.switch()

    counts = run_in_threads(
        [lambda name=name: read_around(trainer(name), replace_once) for name in ("a", "b")], timeout=LONG_S
    )
    assert counts == [Counter(range(ELEMENTS))] * 2


def test_consumers_in_step_go_on_with_the_workers_that_began(service: Service) -> None:
    data = dsnb.Dataset.range(1 << 40).batch(4)
    consumers = [
        iter(
            data.apply(
                dsnb.distribute(
                    "parallel_epochs", service.client, job_name="step", consumer_index=index, num_consumers=2
                )
            )
        )
        for index in range(2)
    ]

    def rounds(count: int) -> list[list[int]]:
        return run_in_threads([lambda it=it: [int(x[0]) for x in islice(it, count)] for it in consumers], LONG_S)

    before = rounds(10)
    service.switch()
    after = rounds(10)
    read = Counter(x for part in (*before, *after) for x in part)
    # Two workers read the whole data, each its own pass: each batch at most twice, and none left out.
    assert set(read.values()) <= {1, 2}
    assert sum(read.values()) == 40
    assert {worker.state for worker in service.client.status().workers} == {"running", "draining"}


def test_workers_that_have_nothing_to_finish_are_gone_at_once(service: Service) -> None:
    service.switch()
    wait_for(lambda: service.workers() == {"w2", "w3"}, what="the replaced workers to leave", timeout=LONG_S)
    assert service.pool.size == 2


class Broken(Launcher):
    """A launcher that starts one worker, and then no more."""

    def __init__(self) -> None:
        self.started: list[LaunchedWorker] = []

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        if self.started:
            raise FailedPreconditionError("the machine has no room")
        self.started.append(Threads().launch(config, on_exit))
        return self.started[0]


def test_the_old_workers_stay_if_the_new_ones_cannot_be_started(service: Service) -> None:
    data = dsnb.Dataset.range(ELEMENTS)
    read = iter(data.apply(dsnb.distribute("distributed_epoch", service.client, max_outstanding_requests=16)))

    def fail() -> None:
        with pytest.raises(FailedPreconditionError, match="no room"):
            service.pool.switch(Broken(), service.config)

    assert read_around(read, fail) == Counter(range(ELEMENTS))
    wait_for(lambda: service.workers() == {"w0", "w1"}, what="the one that was started to leave", timeout=LONG_S)
    service.pool.scale(3)
    assert Counter(int(x) for x in data.apply(dsnb.distribute("parallel_epochs", service.client))) == Counter(
        dict.fromkeys(range(ELEMENTS), 3)
    )


def test_a_pool_that_was_stopped_replaces_nothing(service: Service) -> None:
    service.pool.stop()
    assert service.pool.switch(Threads(), service.config) == 0
    assert service.pool.size == 0


class Slow(Threads):
    """A launcher that starts a worker only when the test lets it."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.started: list[LaunchedWorker] = []

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        self.asked.set()
        assert self.go_on.wait(LONG_S)
        self.started.append(super().launch(config, on_exit))
        return self.started[-1]


def test_a_stop_while_the_new_workers_start_leaves_none_of_them(service: Service) -> None:
    slow = Slow()
    switching = threading.Thread(target=service.pool.switch, args=(slow, service.config), daemon=True)
    switching.start()
    assert slow.asked.wait(LONG_S)
    service.pool.stop()
    slow.go_on.set()
    switching.join(LONG_S)
    assert not switching.is_alive()
    wait_for(lambda: service.workers() == set(), what="the new workers to leave", timeout=LONG_S)
    assert len(slow.started) == 2


# ---- isolation="auto"


def add_up(x: Any) -> Any:
    """Python code that holds the GIL for about 5 ms."""
    total = 0
    for number in range(50_000):
        total += number * number % 7
    return x


def wait(x: Any) -> Any:
    time.sleep(0.005)  # what the function waits for; not a wait of the test
    return x


def multiply(x: Any) -> Any:
    square = np.full((400, 400), 1.5, np.float32)
    return x + 0 * np.int64((square @ square)[0, 0] > 0)


def moved(service: DataService) -> list[str]:
    return [event.text for event in service.status().events if "moved" in event.text]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
def test_a_job_that_the_gil_limits_moves_to_processes_without_losing_an_element(mode: str) -> None:
    with dsnb.start(workers=2, isolation="auto") as service:
        times = 1 if mode == "distributed_epoch" else 2
        elements = 1_500 // times
        data = dsnb.Dataset.range(elements).map(add_up)
        read = data.apply(dsnb.distribute(mode, service, job_name="train"))
        for _ in range(2):
            assert Counter(int(x) for x in read) == Counter(dict.fromkeys(range(elements), times))
        assert moved(service) == [
            "2 workers moved from threads to processes of their own, because the GIL limited job 'train'"
        ]
        assert {worker.isolation for worker in service.status().workers} == {"process"}
        service.scale(3)
        assert {worker.isolation for worker in service.status().workers} == {"process"}


@pytest.mark.slow
def test_a_service_that_is_stopped_while_processes_are_prepared_leaves_none() -> None:
    service = dsnb.start(workers=2, isolation="auto")
    data = dsnb.Dataset.range(100_000).map(add_up)
    read = iter(data.apply(dsnb.distribute("distributed_epoch", service, job_name="train")))
    until = time.monotonic() + LONG_S
    while not supervisors() and time.monotonic() < until:
        next(read)
    prepared = supervisors()
    read.close()
    service.stop()
    assert prepared
    wait_for(lambda: not supervisors(), what="the processes to end", timeout=LONG_S)


def supervisors() -> list[threading.Thread]:
    """The threads that each start a worker process and wait for its end."""
    return [thread for thread in threading.enumerate() if thread.name == "dsnb-worker-process"]


@pytest.mark.slow
@pytest.mark.parametrize("function", [wait, multiply])
def test_a_job_that_waits_or_releases_the_gil_keeps_its_threads(function: Callable[[Any], Any]) -> None:
    with dsnb.start(workers=2, isolation="auto") as service:
        data = dsnb.Dataset.range(100_000).map(function)
        read = iter(data.apply(dsnb.distribute("distributed_epoch", service, job_name="train")))
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            next(read)
        assert not moved(service)
        assert {worker.isolation for worker in service.status().workers} == {"thread"}


def test_the_start_cell_run_again_finds_the_service_that_may_have_moved(capsys: pytest.CaptureFixture[str]) -> None:
    with dsnb.start(workers=2, isolation="auto") as service:
        assert {worker.isolation for worker in service.status().workers} == {"thread"}
        assert dsnb.start(workers=2, isolation="auto").name == service.name
    assert capsys.readouterr().out == f"dsnb: the service {service.name!r} is already running\n"
