"""The dispatcher's process is killed again and again while workers and readers go on: nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import dsnb
from dsnb.errors import NotFoundError
from tests.support.cluster import Cluster
from tests.support.dispatchers import RestartableDispatcher
from tests.support.processes import PythonProcess
from tests.support.reading import first, joined, numbers, run_in_threads
from tests.support.waiting import wait_for
from tests.support.workers import worker_process, worker_processes

AWAY_S = 1.5 * dsnb.DispatcherConfig().worker_timeout_ms / 1000


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[RestartableDispatcher]:
    with RestartableDispatcher(tmp_path / "work") as dispatcher:
        yield dispatcher


@pytest.fixture
def workers(dispatcher: RestartableDispatcher) -> Iterator[list[dsnb.WorkerServer]]:
    config = dsnb.WorkerConfig(dispatcher_address=dispatcher.target, token=dispatcher.token)
    with ExitStack() as stack:
        yield [stack.enter_context(dsnb.WorkerServer(config)) for _ in range(2)]


def slowly(count: int, seconds: float = 0.001) -> dsnb.Dataset:
    """Numbers that take their time, so that a pass is long enough to be disturbed."""

    def wait(number: int) -> int:
        time.sleep(seconds)
        return number

    return dsnb.Dataset.range(count).map(wait)


def read_killing(dispatcher: RestartableDispatcher, elements: Iterator[int], moments: set[int]) -> list[int]:
    """Read to the end and kill the dispatcher after these numbers of elements; reading goes on while it starts."""
    got: list[int] = []
    for element in elements:
        got.append(int(element))
        if len(got) in moments:
            dispatcher.wait_until_ready()
            dispatcher.restart()
    assert dispatcher.kills == len(moments), "the pass was over before the last kill"
    return got


def check_exactly_once(dispatcher: RestartableDispatcher, count: int, kills: int, seed: int) -> None:
    policy = dsnb.distribute("distributed_epoch", dispatcher.target, job_name="train")
    moments = set(random.Random(seed).sample(range(1, count - count // 10), kills))
    got = read_killing(dispatcher, iter(slowly(count).apply(policy)), moments)
    wrong = {number: times for number, times in Counter([*got, *range(count)]).items() if times != 2}
    assert wrong == {}, f"killed after {sorted(moments)} elements, these did not come once (the number is one more)"
    job = dsnb.connect(dispatcher.target, token=dispatcher.token).status().job("train")
    assert job is not None
    assert (job.lost_splits, job.state) == (0, "finished")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_each_element_comes_once_over_four_kills(
    dispatcher: RestartableDispatcher, workers: list[dsnb.WorkerServer], seed: int
) -> None:
    check_exactly_once(dispatcher, 2_000, 4, seed)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_each_element_comes_once_over_twenty_kills(
    dispatcher: RestartableDispatcher,
    workers: list[dsnb.WorkerServer],
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    began = time.monotonic()
    check_exactly_once(dispatcher, 10_000, 20, seed)
    with capsys.disabled():
        print(f"\n20 kills in 10,000 elements: each came once; {time.monotonic() - began:.0f} s")  # noqa: T201


@pytest.mark.slow
def test_it_is_killed_before_between_and_during_passes(
    dispatcher: RestartableDispatcher, workers: list[dsnb.WorkerServer]
) -> None:
    dataset = slowly(400).apply(dsnb.distribute("distributed_epoch", dispatcher.target, job_name="train"))
    dispatcher.restart()
    for passes in range(3):
        elements = iter(dataset)
        got = first(100 * passes, elements)
        if passes:
            dispatcher.restart()
        got += numbers(elements)
        assert sorted(got) == list(range(400))
        dispatcher.wait_until_ready()
        dispatcher.restart()
    dispatcher.wait_until_ready()


@pytest.mark.slow
def test_readers_of_one_job_share_its_pass_over_kills(
    dispatcher: RestartableDispatcher, workers: list[dsnb.WorkerServer]
) -> None:
    policy = dsnb.distribute("distributed_epoch", dispatcher.target, job_name="train")
    readers = [iter(slowly(1_500).apply(policy)) for _ in range(3)]

    def kill() -> list[int]:
        for _ in range(2):
            dispatcher.restart()
            dispatcher.wait_until_ready()
        return []

    got = run_in_threads([kill, *(lambda reader=reader: numbers(reader) for reader in readers)], timeout=60.0)
    assert sorted(joined(got)) == list(range(1_500))


@pytest.mark.slow
def test_trainers_of_a_cached_job_see_one_sequence_over_a_kill(
    dispatcher: RestartableDispatcher, workers: list[dsnb.WorkerServer]
) -> None:
    workers.pop().stop()

    def trainer(name: str) -> Iterator[int]:
        cache = dsnb.CrossTrainerCache(trainer_id=name)
        policy = dsnb.distribute("parallel_epochs", dispatcher.target, job_name="train", cross_trainer_cache=cache)
        return iter(dsnb.Dataset.range(100).repeat().apply(policy))

    one, other = trainer("one"), trainer("other")
    assert first(150, one) == [*range(100), *range(50)]
    dispatcher.restart()
    assert first(150, other) == [*range(100), *range(50)]
    assert first(50, one) == list(range(50, 100))
    dispatcher.wait_until_ready()
    assert first(50, other) == list(range(50, 100))
    for elements in (one, other):
        elements.close()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_worker_that_dies_while_the_dispatcher_is_away_is_missed_when_it_is_back(tmp_path: Path) -> None:
    """Its part is made again behind what its readers had of it: how far it was is kept with everything else."""
    settings = {"work_dir": tmp_path, "worker_timeout_ms": 2_000}
    with Cluster(0, dispatcher=settings) as cluster, ExitStack() as stack:
        target, token, service = cluster.dispatcher.target, cluster.dispatcher.token, cluster.service
        victim, _ = stack.enter_context(worker_processes(2, target, token))
        elements = iter(slowly(3_000).apply(dsnb.distribute("distributed_epoch", service, job_name="train")))
        got = first(1_000, elements)
        service.status()  # everybody reports
        cluster.dispatcher.stop()
        victim.kill()
        cluster.restart_dispatcher()
        got += numbers(elements)
        assert Counter(got) == Counter(range(3_000))
        assert service.status().job("train").lost_splits == 0


@pytest.mark.soak
def test_a_dispatcher_that_was_stopped_for_longer_than_all_times_loses_nobody(tmp_path: Path) -> None:
    """SIGSTOP, as a laptop's lid or a debugger does it: its absence is its own, not the workers'."""
    with RestartableDispatcher(tmp_path) as dispatcher:
        config = dsnb.WorkerConfig(
            dispatcher_address=dispatcher.target, token=dispatcher.token, heartbeat_interval_ms=100
        )
        with dsnb.WorkerServer(config):
            policy = dsnb.distribute("distributed_epoch", dispatcher.target, job_name="train")
            elements = iter(slowly(1_000).apply(policy))
            got = first(100, elements)
            with dispatcher.suspended():
                began = time.monotonic()
                wait_for(lambda: time.monotonic() - began > AWAY_S, what="more than its times", timeout=AWAY_S + 10)
            got += numbers(elements)
            assert sorted(got) == list(range(1_000))


READER = """
import dsnb
policy = dsnb.distribute("parallel_epochs", {target!r}, job_name="train", data_transfer_protocol={transfer!r})
for _ in dsnb.Dataset.range(1 << 40).apply(policy):
    print("READS", flush=True)
    input()
"""


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["shared_memory", "tcp", "grpc"])
def test_a_worker_ends_when_its_dispatcher_and_its_readers_were_killed(
    dispatcher: RestartableDispatcher, transfer: str
) -> None:
    read = ["-c", READER.format(target=dispatcher.target, transfer=transfer)]
    with (
        worker_process(dispatcher.target, dispatcher.token, 0, "--dispatcher-gone", "1") as worker,
        PythonProcess(read, stdin=True, env={"DSNB_TOKEN": dispatcher.token}) as reader,
    ):
        reader.wait_for_line("READS")
        dispatcher.kill()
        reader.kill()
        wait_for(lambda: worker.popen.poll() is not None, what="the worker to end", timeout=20)
        assert "has not answered for" in worker.stderr


@pytest.mark.slow
def test_who_comes_while_it_is_away_waits_for_it(dispatcher: RestartableDispatcher) -> None:
    config = dsnb.WorkerConfig(dispatcher_address=dispatcher.target, token=dispatcher.token)
    policy = dsnb.distribute("distributed_epoch", dispatcher.target, job_name="train")

    def worker_and_reader() -> list[int]:
        with dsnb.WorkerServer(config):
            return numbers(slowly(100).apply(policy))

    dispatcher.kill()
    start = threading.Timer(0.5, dispatcher.start)
    start.start()
    got = run_in_threads([worker_and_reader])
    start.join()
    assert sorted(got[0]) == list(range(100))


@pytest.mark.slow
def test_a_dispatcher_without_a_work_dir_begins_anew_and_nobody_is_taken_for_another() -> None:
    """Its numbers begin again as well: neither an old reader nor an old task may pass for a new one."""
    with Cluster(1, dispatcher={"token": "the same"}) as cluster:
        policy = dsnb.distribute("parallel_epochs", cluster.service, max_outstanding_requests=1)
        old = iter(dsnb.Dataset.range(1_000_000).apply(policy))
        first(10, old)
        cluster.restart_dispatcher()
        new = iter(dsnb.Dataset.range(7_000_000, 7_000_100).apply(policy))
        assert numbers(new) == list(range(7_000_000, 7_000_100))
        with pytest.raises(NotFoundError, match="Unknown iteration client id"):
            numbers(old)
