"""Each verdict on a service that is really in that state, and none where all is well."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import dsnb
from dsnb.errors import DataLossWarning
from dsnb.monitor.verdict import Verdict
from tests.support.cluster import Cluster
from tests.support.proxy import slow_link
from tests.support.waiting import wait_for

WATCH_S = 1.5


@contextmanager
def reading(
    data: dsnb.Dataset, service: Any, step: Callable[[], object] = lambda: None, **options: Any
) -> Iterator[list[int]]:
    """Have a thread read a job called train, with a step of its own after each element; counts what it got."""
    distributed = data.repeat().apply(dsnb.distribute("parallel_epochs", service, job_name="train", **options))
    stop, got = threading.Event(), [0]

    def read() -> None:
        with iter(distributed) as elements:
            while not stop.is_set():
                with suppress(DataLossWarning):  # an error here, and reading goes on behind it
                    next(elements)
                    got[0] += 1
                    step()

    thread = threading.Thread(target=read, name="test-reader", daemon=True)
    thread.start()
    try:
        yield got
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def explained(service: dsnb.DataService, *readers: list[int], least: int = 3) -> tuple[Verdict, ...]:
    """What is said of a service when all readers have begun."""
    wait_for(lambda: all(got[0] >= least for got in readers), what="the readers to begin", timeout=30)
    return service.explain(WATCH_S)


def slow(seconds: float) -> Callable[[Any], Any]:
    def work(x: Any) -> Any:
        time.sleep(seconds)
        return x

    return work


def napping(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def the_worst(verdicts: tuple[Verdict, ...], level: str, cause: str) -> Verdict:
    told = verdicts[0]
    assert (told.level, told.cause) == (level, cause), told
    return told


@contextmanager
def behind_a_link(**link: float) -> Iterator[Cluster]:
    """A service whose one worker is reached as from another machine, through a link."""
    with slow_link(**link) as proxy, Cluster(workers=0) as cluster:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        proxy.upstream = ("127.0.0.1", port)
        cluster.add_worker(remote=True, port=port, worker_address=proxy.address)
        yield cluster


def test_a_healthy_service_has_nothing_said_against_it() -> None:
    with Cluster(workers=2) as cluster, reading(dsnb.Dataset.range(100), cluster.service, napping(0.02)) as got:
        explained(cluster.service, got)
        # While others have the machine its reader does wait.
        told = wait_for(lambda: silent(cluster.service), what="a moment in which all is well", timeout=40)
        assert {one.cause for one in told} == {"none"}


def silent(service: dsnb.DataService) -> tuple[Verdict, ...]:
    """What is said of a service if that is nothing bad."""
    told = service.explain(WATCH_S)
    return told if all(one.level == "good" for one in told) else ()


def test_a_reader_that_is_itself_slow_is_told_that_the_input_is_no_matter() -> None:
    with Cluster(workers=1) as cluster, reading(dsnb.Dataset.range(100), cluster.service, napping(0.05)) as got:
        told = the_worst(explained(cluster.service, got), "good", "none")
        assert re.search(
            r"not input-bound: client '\d+' waits .* and spends (9\d|100) % in its own loop, at \d+", told.text
        )
        assert told.remedy == "More workers would change nothing."


def test_a_slow_function_is_named_with_what_it_costs() -> None:
    data = dsnb.Dataset.range(1000).map(slow(0.001)).map(slow(0.02))
    with Cluster(workers=1) as cluster, reading(data, cluster.service) as got:
        told = the_worst(explained(cluster.service, got), "bad", "operation")
        assert told.subject.startswith("map(work")
        assert re.search(r"is input-bound: client '\d+' waits (9\d|100) % of its time", told.text)
        assert re.search(r"takes [89]\d % of the work of 1 worker: \d+(\.\d)? ms for each element", told.text)
        assert "num_parallel_calls" in told.remedy


def test_too_few_workers_are_told_with_how_many_would_do() -> None:
    data = dsnb.Dataset.range(1000).map(slow(0.005)).map(slow(0.005)).map(slow(0.005))
    with dsnb.start(workers=1, name="few") as service, reading(data, service, napping(0.005)) as got:
        told = the_worst(explained(service, got), "bad", "workers")
        assert re.search(r"1 worker work.* 9\d % of the time", told.text) or "100 % of the time" in told.text
        enough = re.search(r"svc.scale\((\d)\) would do", told.remedy)
        assert enough
        assert 2 <= int(enough[1]) <= 5


def test_a_worker_that_lags_behind_the_others_is_named(tmp_path: Path) -> None:
    def slower_on_one(x: Any) -> Any:
        name = threading.current_thread().name
        with suppress(FileExistsError), open(tmp_path / "chosen", "x", encoding="ascii") as file:
            file.write(name)
        time.sleep(0.1 if (tmp_path / "chosen").read_text(encoding="ascii") == name else 0.01)
        return x

    with Cluster(workers=3) as cluster, reading(dsnb.Dataset.range(2000).map(slower_on_one), cluster.service) as got:
        told = the_worst(explained(cluster.service, got, least=30), "bad", "worker")
        slowest = min(cluster.job("train").tasks, key=lambda task: task.head).worker
        assert told.subject == slowest
        assert re.search(rf"Worker {slowest} makes \S+ where the others make \S+ each", told.text)
        assert f"svc.drain('{slowest}')" in told.remedy


def test_a_full_link_is_told_with_what_it_carries() -> None:
    noise = np.random.default_rng(7).integers(0, 255, (64, 50_000), np.uint8)
    data = dsnb.Dataset.from_tensor_slices(noise)
    with behind_a_link(bytes_s=4e6) as cluster, reading(data, cluster.service) as got:
        told = the_worst(explained(cluster.service, got, least=120), "bad", "link")
        assert re.search(r"For \d+ % of the time .* under way from worker w0: the link carries \d", told.text)


def test_a_long_link_that_carries_little_is_told_to_have_more_under_way() -> None:
    data = dsnb.Dataset.range(1000)
    with behind_a_link(late_s=0.02) as cluster, reading(data, cluster.service, max_outstanding_requests=1) as got:
        told = the_worst(explained(cluster.service, got), "bad", "link")
        assert "leave max_outstanding_requests out" in told.remedy


def test_thread_workers_beside_a_loop_that_holds_the_interpreter_are_told() -> None:
    def work(x: Any) -> Any:
        """Many small steps: the interpreter may be given to others after each."""
        for _ in range(1_500_000):
            pass
        return x

    data = dsnb.Dataset.range(1000).map(work)

    def hold() -> None:
        """Stay in C, which lets nobody else in meanwhile."""
        sum(range(2_000_000))

    with dsnb.start(workers=1, name="held") as service, reading(data, service, hold) as got:
        wait_for(lambda: got[0] > 3, what="the reader to begin", timeout=30)
        told = service.explain(3.0)[0]
        assert told.cause == "interpreter"  # most of what it loses looks like its own loop: it is let in late
        assert 'isolation="process"' in told.remedy


def trainer(name: str, **more: Any) -> Any:
    return dsnb.CrossTrainerCache(trainer_id=name, **more)


@contextmanager
def two_trainers(**slow_one: Any) -> Iterator[tuple[dsnb.DataService, list[int], list[int]]]:
    """A fast trainer and a slow one over a window that holds few elements."""
    data = dsnb.Dataset.range(10_000).map(lambda x: np.zeros(1000) + x)
    with Cluster(workers=1, worker={"cross_trainer_cache_size_bytes": 400_000}) as cluster, ExitStack() as stack:
        slow = stack.enter_context(
            reading(data, cluster.service, napping(0.05), cross_trainer_cache=trainer("slow", **slow_one))
        )
        wait_for(lambda: slow[0], what="the slow one to begin")  # or it would find the first elements gone
        fast = stack.enter_context(reading(data, cluster.service, napping(0.001), cross_trainer_cache=trainer("fast")))
        yield cluster.service, fast, slow


def test_a_window_that_is_too_small_for_a_slow_trainer_is_told_with_what_it_loses() -> None:
    with two_trainers() as (service, fast, slow):
        service.wait_until(lambda now: now.job("train").trainer("slow").skipped > 0)  # type: ignore[union-attr]
        told = the_worst(explained(service, fast, slow), "bad", "window")
        assert told.subject == "slow"
        assert re.search(r"Trainer 'slow' loses \S+ of job 'train' \(.* so far\)", told.text)
        assert 'on_lag="wait"' in told.remedy
        warned = [
            event for event in service.status().events if "'slow' of job 'train' begins to lose data" in event.text
        ]
        assert [event.level for event in warned] == ["warning"]


def test_a_trainer_that_others_have_to_wait_for_is_named() -> None:
    with two_trainers(on_lag="wait") as (service, fast, slow):
        told = the_worst(explained(service, fast, slow, least=8), "bad", "holder")
        assert told.subject == "slow"
        assert "waits" in told.text
        assert "svc.send_away('train', 'slow')" in told.remedy


def test_a_paused_job_is_told_and_nothing_else_is_blamed() -> None:
    with Cluster(workers=1) as cluster, reading(dsnb.Dataset.range(1000), cluster.service, napping(0.01)) as got:
        wait_for(lambda: got[0] > 3, what="the reader to begin")
        cluster.service.pause("train")
        told = the_worst(explained(cluster.service), "warn", "paused")
        assert told.remedy == "svc.resume('train') goes on."
        assert len(cluster.service.explain(1.0)) == 1
        cluster.service.resume("train")


def test_a_service_without_workers_is_told() -> None:
    with Cluster(workers=1) as cluster, reading(dsnb.Dataset.range(1000), cluster.service) as got:
        wait_for(lambda: got[0] > 3, what="the reader to begin")
        cluster.service.remove("w0")
        wait_for(lambda: not cluster.status().workers, what="the worker to go")
        assert the_worst(cluster.service.explain(WATCH_S), "bad", "no workers").remedy.startswith("2 starts two")
        cluster.add_worker()
