"""Each verdict on a service that is really in that state, and none where all is well."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import CancelledError, DataLossWarning
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import MIN_SPAN_S, Verdict, verdicts
from dsnb.processes import usable_cpus
from dsnb.worker import server as worker_server
from tests.support.cluster import Cluster
from tests.support.competing import burn, read
from tests.support.proxy import poor_link
from tests.support.transfers import DEPENDS_ON_TRANSFER
from tests.support.waiting import wait_for

WATCH_S = 1.5
QUIET_SHARE = 0.03
"""A reader that waits for a smaller share of its time was not disturbed; at 0.05 something would be said of it."""
OVER_IT = {"data_transfer_protocol": "grpc"}
"""By itself a reader finds shared memory of its host, whatever link is between."""


@contextmanager
def reading(
    data: dsnb.Dataset,
    service: Any,
    step: Callable[[], object] = lambda: None,
    mode: str = "parallel_epochs",
    **options: Any,
) -> Iterator[list[int]]:
    """Have a thread read a job called train, with a step of its own after each element.

    Gives how many it got, and how many nanoseconds it waited for them.
    """
    distributed = data.repeat().apply(dsnb.distribute(mode, service, job_name="train", **options))
    stop, got = threading.Event(), [0, 0]
    its = iter(distributed)

    def read() -> None:
        with suppress(CancelledError, StopIteration), its as elements:  # StopIteration: closed between two
            while not stop.is_set():
                with suppress(DataLossWarning):  # an error here, and reading goes on behind it
                    began = time.perf_counter_ns()
                    next(elements)
                    got[0], got[1] = got[0] + 1, got[1] + time.perf_counter_ns() - began
                    step()

    thread = threading.Thread(target=read, name="test-reader", daemon=True)
    thread.start()
    try:
        yield got
    finally:
        stop.set()
        its.close()  # or one that waits for another consumer would wait on
        thread.join(30)
        assert not thread.is_alive()


def explained(service: dsnb.DataService, *readers: list[int], least: int = 3) -> Callable[[], tuple[Verdict, ...]]:
    """A look at what is said of a service, when all readers have begun."""
    wait_for(lambda: all(got[0] >= least for got in readers), what="the readers to begin", timeout=30)
    return lambda: service.explain(WATCH_S)


def slow(seconds: float) -> Callable[[Any], Any]:
    def work(x: Any) -> Any:
        time.sleep(seconds)
        return x

    return work


def napping(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def the_worst(look: Callable[[], tuple[Verdict, ...]], level: str, cause: str) -> Verdict:
    """What is said first, as soon as it is that; while others have the machine it may be another, or nothing."""

    def found() -> Verdict | None:
        worst = next(iter(look()), None)
        return worst if worst is not None and (worst.level, worst.cause) == (level, cause) else None

    told = wait_for(found, what=f"{cause!r} to be told", timeout=40)
    assert told is not None
    return told


@contextmanager
def behind_a_link(**link: float) -> Iterator[Cluster]:
    """A service whose one worker is reached as from another machine, through a link."""
    with poor_link(**link) as proxy, Cluster(workers=0) as cluster:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        proxy.upstream = ("127.0.0.1", port)
        cluster.add_worker(remote=True, port=port, worker_address=proxy.address)
        yield cluster


@pytest.mark.slow
def test_a_healthy_service_has_nothing_said_against_it() -> None:
    with Cluster(workers=2) as cluster, reading(dsnb.Dataset.range(100), cluster.service, napping(0.1)) as got:
        explained(cluster.service, got)
        wait_for(lambda: in_peace(cluster.service, got), what="a look in which nobody waits", timeout=60)


def in_peace(service: dsnb.DataService, *readers: list[int]) -> bool:
    """Whether no reader waited during a look, which others on the machine may prevent; then all must be well."""
    waited, began = [got[1] for got in readers], time.perf_counter_ns()
    told = service.explain(WATCH_S)
    most = QUIET_SHARE * (time.perf_counter_ns() - began)
    if not told or any(got[1] - before > most for got, before in zip(readers, waited, strict=True)):
        return False
    assert {(one.level, one.cause) for one in told} == {("good", "none")}, told
    return True


@pytest.mark.slow
def test_a_reader_that_is_itself_slow_is_told_that_the_input_is_no_matter() -> None:
    with Cluster(workers=1) as cluster, reading(dsnb.Dataset.range(100), cluster.service, napping(0.05)) as got:
        told = the_worst(explained(cluster.service, got), "good", "none")
        assert re.search(
            r"not input-bound: the client in process \d+ waits .* and spends (9\d|100) % in its own loop, at \d+",
            told.text,
        )
        assert told.remedy == "More workers would not help."


@pytest.fixture
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose other processes use no CPU."""
    monkeypatch.setattr(worker_server, "idle_ns", lambda: time.monotonic_ns() * usable_cpus())


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_a_slow_function_is_named_with_what_it_costs() -> None:
    data = dsnb.Dataset.range(1000).map(slow(0.001)).map(slow(0.02))
    with Cluster(workers=1) as cluster, reading(data, cluster.service) as got:
        told = the_worst(explained(cluster.service, got), "bad", "operation")
        assert told.subject.startswith("map(work")
        assert re.search(r"is input-bound: the client in process \d+ waits (9\d|100) % of its time", told.text)
        assert re.search(r"takes [89]\d % of the work of 1 worker: \d+(\.\d)? ms for each element", told.text)
        assert "num_parallel_calls" in told.remedy


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_too_few_workers_are_told_with_how_many_would_do() -> None:
    data = dsnb.Dataset.range(1000).map(slow(0.005)).map(slow(0.005)).map(slow(0.005))
    with dsnb.start(workers=1, name="few") as service, reading(data, service, napping(0.005)) as got:
        told = the_worst(explained(service, got), "bad", "workers")
        assert re.search(r"1 worker works (9\d|100) % of the time", told.text)
        enough = re.search(r"svc.scale\((\d)\) is enough", told.remedy)
        assert enough, told
        assert 2 <= int(enough[1]) <= 5


@pytest.mark.slow
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
        assert re.search(rf"Worker {slowest} produces \S+, while the others produce \S+ each", told.text)
        assert f"svc.drain('{slowest}')" in told.remedy


@pytest.mark.slow
def test_a_full_link_is_told_with_what_it_carries() -> None:
    noise = np.random.default_rng(7).integers(0, 255, (64, 50_000), np.uint8)
    data = dsnb.Dataset.from_tensor_slices(noise)
    with behind_a_link(bytes_s=4e6) as cluster, reading(data, cluster.service, **OVER_IT) as got:
        told = the_worst(explained(cluster.service, got, least=120), "bad", "link")
        assert re.search(
            r"For \d+ % of the time, .* transferred from worker w0: the network connection carries \d", told.text
        )


@pytest.mark.slow
def test_a_long_link_that_carries_little_is_told_to_have_more_under_way() -> None:
    data = dsnb.Dataset.range(1000)
    with (
        behind_a_link(delay_s=0.02) as cluster,
        reading(data, cluster.service, max_outstanding_requests=1, **OVER_IT) as got,
    ):
        told = the_worst(explained(cluster.service, got), "bad", "link")
        assert "do not set max_outstanding_requests" in told.remedy


def counting(x: Any) -> Any:
    """Many small steps: the interpreter may be given to others after each."""
    for _ in range(1_500_000):
        pass
    return x


@pytest.mark.slow
def test_thread_workers_beside_a_loop_that_holds_the_interpreter_are_told() -> None:
    data = dsnb.Dataset.range(1000).map(counting)

    def hold() -> None:
        """Stay in C, which lets nobody else in meanwhile."""
        sum(range(2_000_000))

    with dsnb.start(workers=1, name="held") as service, reading(data, service, hold) as got:
        wait_for(lambda: got[0] > 3, what="the reader to begin", timeout=30)
        # Most of what it loses looks like its own loop: it is let in late.
        told = wait_for(lambda: named(service, "interpreter"), what="the interpreter to be told", timeout=40)
        assert 'isolation="process"' in told.remedy


def burning(x: Any, seconds: float = 0.02) -> Any:
    """Needs a processor for 20 ms, in C: nobody waits for the interpreter."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sorted(range(20_000))
    return x


def burning_a_little(x: Any) -> Any:
    """Needs a processor for 4 ms."""
    return burning(x, 0.004)


@contextmanager
def on_processors(count: int) -> Iterator[None]:
    """Have what this thread starts run on so many processors at the most."""
    may = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(may)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, may)


@pytest.mark.slow
def test_where_the_processors_are_taken_no_more_workers_are_recommended_but_what_helps_instead() -> None:
    data = dsnb.Dataset.range(1000).map(burning)
    with on_processors(1), Cluster(workers=1) as cluster, reading(data, cluster.service) as got:
        told = the_worst(explained(cluster.service, got), "bad", "operation")
        assert cluster.status().workers[0].cpus == 1
        assert re.search(r"The only CPU is busy \(0\.\d idle\)\.", told.text)
        assert "More workers here would only compete for the CPUs." in told.remedy
        assert "CrossTrainerCache" in told.remedy
        assert "num_parallel_calls" not in told.remedy


@pytest.mark.slow
def test_where_the_processors_are_taken_and_no_operation_stands_out_that_is_the_cause() -> None:
    data = dsnb.Dataset.range(10_000)
    for _ in range(5):  # of two, one may seem to take far longer while somebody else has the processor
        data = data.map(burning_a_little)
    with on_processors(1), Cluster(workers=1) as cluster, reading(data, cluster.service) as got:
        told = the_worst(explained(cluster.service, got), "bad", "processors")
        assert re.search(
            r"1 worker works .*, and no single operation takes most of the time\. The only CPU is busy", told.text
        )
        assert "Make the pipeline cheaper" in told.remedy


@pytest.mark.slow
def test_never_more_workers_are_recommended_than_there_are_processors_for_them() -> None:
    data = dsnb.Dataset.range(1000).map(burning)
    with on_processors(2), Cluster(workers=1) as cluster, reading(data, cluster.service) as got:
        told = the_worst(explained(cluster.service, got), "bad", "operation")
        recommended = map(int, re.findall(r"(\d+) (?:is enough|is as many)", told.remedy))
        assert max(recommended, default=0) <= cluster.status().workers[0].cpus, told


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="processors are shared on Linux only")
def test_a_job_that_is_held_back_for_another_one_is_told_which_and_its_weight() -> None:
    with ExitStack() as stack:
        service = stack.enter_context(dsnb.start(workers=1, isolation="process"))
        stack.enter_context(read(service, "wide", burn, 6))
        stack.enter_context(read(service, "narrow", burn, None, weight=3))

        def found() -> Verdict | None:
            return next((one for one in service.explain(WATCH_S) if one.cause == "other jobs"), None)

        told = wait_for(found, what="the verdict on the job that is held back", timeout=90)
        assert told is not None
        assert (told.job, told.subject) == ("wide", "narrow")
        assert "1 worker holds it back" in told.text
        assert "job 'narrow' (weight 3)" in told.text
        assert "distribute(..., weight=2)" in told.remedy


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_a_function_that_is_called_in_parallel_already_is_not_told_to_be() -> None:
    data = dsnb.Dataset.range(10_000).map(slow(0.05), num_parallel_calls=3)
    with Cluster(workers=1) as cluster, reading(data, cluster.service) as got:
        told = the_worst(explained(cluster.service, got), "bad", "operation")
        assert " on 3 threads: " in told.text
        assert "num_parallel_calls" not in told.remedy
        assert told.remedy.startswith("Make it cheaper or add workers: ")


@pytest.mark.slow
def test_an_operation_that_is_no_map_is_not_told_to_run_in_parallel() -> None:
    def slowly() -> Iterator[int]:
        while True:
            time.sleep(0.02)
            yield 1

    with Cluster(workers=1) as cluster, reading(dsnb.Dataset.from_generator(slowly), cluster.service) as got:
        told = the_worst(explained(cluster.service, got), "bad", "operation")
        assert told.subject.startswith("from_generator")
        assert "num_parallel_calls" not in told.remedy


@pytest.mark.slow
def test_thread_workers_that_hold_the_interpreter_from_each_other_are_told() -> None:
    data = dsnb.Dataset.range(1000).map(counting)
    with dsnb.start(workers=3, name="each-other") as service, reading(data, service) as got:
        wait_for(lambda: got[0] > 3, what="the reader to begin", timeout=30)
        told = the_worst(lambda: service.explain(3.0), "bad", "interpreter")
        assert "compete for the GIL with each other" in told.text
        assert 'isolation="process"' in told.remedy


def trainer(name: str, **more: Any) -> Any:
    return dsnb.CrossTrainerCache(trainer_id=name, **more)


@contextmanager
def two_trainers(
    window: int = 400_000, pace: float = 0.001, **slow_one: Any
) -> Iterator[tuple[dsnb.DataService, list[int], list[int]]]:
    """A fast trainer and a slow one over a window that holds few elements, of 8 kB each."""
    data = dsnb.Dataset.range(10_000).map(lambda x: np.zeros(1000) + x)
    with Cluster(workers=1, worker={"cross_trainer_cache_size_bytes": window}) as cluster, ExitStack() as stack:
        slow = stack.enter_context(
            reading(data, cluster.service, napping(0.05), cross_trainer_cache=trainer("slow", **slow_one))
        )
        wait_for(lambda: slow[0], what="the slow one to begin")  # or it would find the first elements gone
        fast = stack.enter_context(reading(data, cluster.service, napping(pace), cross_trainer_cache=trainer("fast")))
        yield cluster.service, fast, slow


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_trainer_that_others_have_to_wait_for_is_named() -> None:
    with two_trainers(on_lag="wait") as (service, fast, slow):
        told = the_worst(explained(service, fast, slow, least=8), "bad", "holder")
        assert told.subject == "slow"
        assert "waits" in told.text
        assert "svc.evict('train', 'slow')" in told.remedy


@pytest.mark.slow
def test_a_trainer_that_will_lose_data_soon_is_told_before_it_does() -> None:
    with two_trainers(window=16_000_000, pace=0.005) as (service, fast, slow):
        explained(service, fast, slow)
        told = wait_for(
            lambda: [one for one in service.explain(1.0) if one.cause == "window"], what="a warning", timeout=40
        )[0]
        assert (told.level, told.subject) == ("warn", "slow")
        assert re.search(
            r"'slow' of job 'train' is [\d,]+ elements behind and will begin to lose data in \d", told.text
        )
        assert 'on_lag="wait"' in told.remedy
        assert service.status().job("train").trainer("slow").skipped == 0  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
def test_after_the_end_of_a_run_it_is_explained_as_in_its_report(tmp_path: Path, recorded: bool) -> None:
    with dsnb.start(workers=1, name="past") as service:
        recording = service.record(tmp_path / "run.db", every=0.2) if recorded else nullcontext()
        data = dsnb.Dataset.range(10_000).map(slow(0.02))
        with recording, reading(data, service, mode="distributed_epoch") as got:
            wait_for(lambda: got[0] > 150, what="three seconds of it", timeout=60)
        service.wait_until(lambda now: not now.jobs[0].clients)
        (told,) = service.explain(1.0)
        assert (told.level, told.cause) == ("bad", "operation" if recorded else "ended"), told
        assert re.search(r"input-bound: the client in process \d+ waite?[sd] \d+ % of its", told.text)
        assert re.search(r"map\(\S+\) (takes|took) \d+ % of the work", told.text)
        page = Path(service.report(tmp_path / "run.html")).read_text(encoding="utf-8")
        assert escape(told.text.partition(" map(")[0]) in page  # the worker may still fill its buffer


@pytest.mark.slow
def test_a_trainer_that_a_person_evicted_is_not_said_to_have_fallen_behind() -> None:
    with two_trainers(on_lag="spill") as (service, fast, slow):
        explained(service, fast, slow, least=8)
        before = service.status()
        service.evict("train", "slow")
        now = service.wait_until(lambda now: now.job("train").trainer("slow").skipped > 0)  # type: ignore[union-attr]
        service.wait_until(lambda later: later.time - before.time > MIN_SPAN_S)
        told = next(one for one in verdicts(before, service.status()) if one.subject == "slow")
        assert (told.level, told.cause) == ("warn", "evicted")
        assert re.search(
            r"'slow' of job 'train' was evicted by svc\.evict\(\) of .* it has missed [\d,]+ el", told.text
        )
        assert "on_lag" not in told.remedy
        assert now.job("train").trainer("fast").evicted_by == ""  # type: ignore[union-attr]


@pytest.mark.slow
def test_splits_that_went_with_a_worker_are_told() -> None:
    # What such a map makes comes in another order each time: another worker cannot go on where this one was.
    data = dsnb.Dataset.range(10_000).map(slow(0.005), num_parallel_calls=2, deterministic=False).repeat()
    with Cluster(workers=2) as cluster:
        distributed = data.apply(dsnb.distribute("distributed_epoch", cluster.service, job_name="train"))
        with warnings.catch_warnings(), iter(distributed) as elements:
            warnings.simplefilter("ignore", DataLossWarning)
            next(elements)
            before = cluster.status()
            assert not [one for one in verdicts(before, wait_for_look_after(cluster, before)) if one.cause == "loss"]
            cluster.service.remove("w0")
            wait_for(lambda: cluster.job("train").lost_splits, what="the loss to be counted")
            told = the_worst(lambda: verdicts(before, wait_for_look_after(cluster, before)), "bad", "loss")
            assert re.search(r"Job 'train' lost [\d,]+ splits? with a worker within \d", told.text)
            assert any("w0" in event.text for event in cluster.status().events)


def wait_for_look_after(cluster: Cluster, before: Snapshot) -> Snapshot:
    """A snapshot that is far enough from another to be compared with it."""
    return cluster.service.wait_until(lambda now: now.time - before.time > MIN_SPAN_S)


@pytest.mark.slow
def test_a_reader_that_makes_many_small_arrays_of_what_arrives_is_told_to_batch() -> None:
    columns = {f"column {number}": np.arange(4000) for number in range(60)}
    data = dsnb.Dataset.from_tensor_slices(columns)
    with dsnb.start(workers=1, name="wide", isolation="process") as service, reading(data, service) as got:
        explained(service, got)
        told = wait_for(lambda: named(service, "client"), what="its decoding to be told", timeout=40)
        assert re.search(r"It spends \d\d % of its time building elements from received data\.", told.text)
        assert told.remedy.startswith("Batch before distribute")


def named(service: dsnb.DataService, cause: str) -> Verdict | None:
    """What is said of a service if that is its cause; while others have the machine it may be another."""
    worst = next(iter(service.explain(WATCH_S)), None)
    return worst if worst is not None and worst.cause == cause else None


@pytest.mark.slow
@DEPENDS_ON_TRANSFER
def test_elements_that_are_not_asked_for_in_time_are_told() -> None:
    large = dsnb.Dataset.from_tensor_slices([bytes(400_000)] * 64)  # which are handed over by reference
    with Cluster(workers=1) as cluster, reading(large, cluster.service, max_outstanding_requests=1) as got:
        explained(cluster.service, got)
        told = wait_for(lambda: named(cluster.service, "demand"), what="its asking to be told", timeout=40)
        assert re.search(r"The workers work only \d+ % of the time and the network is not busy", told.text)
        assert "do not set max_outstanding_requests" in told.remedy


@pytest.mark.slow
def test_a_slow_consumer_is_named_to_those_who_wait_for_its_rounds() -> None:
    data = dsnb.Dataset.range(1000)
    with Cluster(workers=1) as cluster, ExitStack() as stack:
        fast = stack.enter_context(reading(data, cluster.service, consumer_index=0, num_consumers=2))
        slow = stack.enter_context(reading(data, cluster.service, napping(0.05), consumer_index=1, num_consumers=2))
        told = the_worst(explained(cluster.service, fast, slow), "bad", "consumer")
        assert told.subject == "consumer 1"
        assert re.search(r"consumer 1 spends (9\d|100) % of its time in its own loop, at \d", told.text)


@pytest.mark.slow
def test_a_consumer_that_has_gone_is_told_to_those_who_wait_for_its_rounds() -> None:
    data = dsnb.Dataset.range(1000)
    with Cluster(workers=1) as cluster, ExitStack() as stack:
        got = stack.enter_context(reading(data, cluster.service, consumer_index=0, num_consumers=2))
        with reading(data, cluster.service, napping(0.01), consumer_index=1, num_consumers=2) as other:
            wait_for(lambda: got[0] > 3 and other[0] > 3, what="both to begin", timeout=30)
        told = wait_for(lambda: named(cluster.service, "consumer"), what="the absence to be told", timeout=40)
        assert "the next one waits for consumer 1" in told.text


@pytest.mark.slow
def test_no_rule_speaks_where_two_trainers_of_one_speed_share_splits_over_a_link() -> None:
    data = dsnb.Dataset.range(100_000).batch(10)
    with Cluster(workers=0) as cluster, ExitStack() as stack:
        cluster.add_worker(remote=True)
        readers = [
            stack.enter_context(
                reading(
                    data, cluster.service, napping(0.1), mode="distributed_epoch", cross_trainer_cache=trainer(name)
                )
            )
            for name in ("a", "b")
        ]
        explained(cluster.service, *readers)
        wait_for(lambda: in_peace(cluster.service, *readers), what="a look in which nobody waits", timeout=60)


@pytest.mark.slow
def test_a_paused_job_is_told_and_nothing_else_is_blamed() -> None:
    with Cluster(workers=1) as cluster, reading(dsnb.Dataset.range(1000), cluster.service, napping(0.01)) as got:
        wait_for(lambda: got[0] > 3, what="the reader to begin")
        cluster.service.pause("train")
        told = the_worst(explained(cluster.service), "warn", "paused")
        assert told.remedy == "svc.resume('train') continues it."
        assert len(cluster.service.explain(1.0)) == 1
        cluster.service.resume("train")


@pytest.mark.slow
def test_a_service_without_workers_is_told() -> None:
    with Cluster(workers=1) as cluster, reading(dsnb.Dataset.range(1000), cluster.service) as got:
        wait_for(lambda: got[0] > 3, what="the reader to begin")
        cluster.service.remove("w0")
        wait_for(lambda: not cluster.status().workers, what="the worker to go")
        assert the_worst(lambda: cluster.service.explain(WATCH_S), "bad", "no workers").remedy.startswith(
            "2 starts two"
        )
        cluster.add_worker()
