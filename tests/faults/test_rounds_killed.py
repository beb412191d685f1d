"""A worker, the dispatcher or a consumer is killed in a coordinated read: rounds stay whole, and consumers in step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.errors import DataLossError, DataLossWarning, DeadlineExceededError
from tests.support.cluster import Cluster
from tests.support.dispatchers import RestartableDispatcher
from tests.support.processes import PythonProcess
from tests.support.reading import first, run_in_threads
from tests.support.rounds import Consumers, numbers_in_rounds, wait_until_all_read
from tests.support.waiting import wait_for
from tests.support.workers import worker_processes

TIMES = {"reconnect_ms": 300, "worker_timeout_ms": 5_000, "client_timeout_ms": 5_000}
DEADLINE_S = 30.0
CONSUMER = """
import sys, dsnb
source = dsnb.Dataset.range(1 << 40).repeat()
index, count = int(sys.argv[2]), int(sys.argv[3])
policy = dsnb.distribute("parallel_epochs", sys.argv[1], job_name="job", consumer_index=index, num_consumers=count)
for element in source.apply(policy):
    print(int(element), flush=True)
    if int(element) >= 30 and sys.argv[4] == "stay":
        input()
"""


@pytest.mark.slow
def test_rounds_stay_whole_when_a_worker_is_killed_and_what_it_took_is_told_in_time() -> None:
    with Cluster(0, dispatcher=TIMES) as cluster, ExitStack() as stack:
        target, token = cluster.dispatcher.target, cluster.dispatcher.token
        victim, _survivor = stack.enter_context(worker_processes(2, target, token))
        consumers = stack.enter_context(Consumers(numbers_in_rounds(3, cluster.service)))
        rows = consumers.rounds_in_threads(50)
        assert sum(row[0] == 0 for row in rows) == 2
        victim.kill()
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cluster.service.wait_until(lambda status: len(status.workers) == 1, DEADLINE_S)
            rows += consumers.rounds_in_threads(300, DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S

        # What each worker gave came in order, once, and without a gap: what all had received was still given.
        numbers = sorted(row[0] // 3 for row in rows)
        gone = next(turn for turn in range(1000) if numbers.count(turn) < 2)
        assert numbers == sorted([*range(gone), *range(len(rows) - gone)])
        told = [str(one.message) for one in caught if issubclass(one.category, DataLossWarning)]
        assert sum("elements that not all consumers received will not arrive" in text for text in told) == 3
        rounds = cluster.job("job").rounds
        assert rounds is not None
        assert (len(rounds.workers), rounds.halted, rounds.waits_for) == (1, False, "")
        events = [event.text for event in cluster.status().events]
        assert any(text.startswith("worker w") and "was lost" in text for text in events)


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[RestartableDispatcher]:
    with RestartableDispatcher(tmp_path / "work") as dispatcher:
        yield dispatcher


@pytest.mark.slow
def test_consumers_that_may_lose_nothing_get_errors_and_go_on_in_step() -> None:
    with Cluster(0, dispatcher=TIMES) as cluster, ExitStack() as stack:
        target, token = cluster.dispatcher.target, cluster.dispatcher.token
        victim, _survivor = stack.enter_context(worker_processes(2, target, token))
        datasets = numbers_in_rounds(2, cluster.service, on_worker_loss="raise")
        consumers = stack.enter_context(Consumers(datasets))
        consumers.rounds_in_threads(50)
        victim.kill()
        cluster.service.wait_until(lambda status: len(status.workers) == 1, DEADLINE_S)
        read = [lambda reader=reader: with_errors(reader, 300) for reader in consumers.iterators]
        (one, first_errors), (other, second_errors) = run_in_threads(read, DEADLINE_S)
        for errors in (first_errors, second_errors):
            assert any("elements that not all consumers received will not arrive" in error.what for error in errors)
        for row in zip(one, other, strict=True):
            consumers.check(list(row))


def with_errors(reader: Iterator[Any], count: int) -> tuple[list[int], list[DataLossError]]:
    """So many elements, and the errors between them."""
    got, errors = list[int](), list[DataLossError]()
    while len(got) < count:
        try:
            got.append(int(next(reader)))
        except DataLossError as error:
            errors.append(error)
    return got, errors


@pytest.mark.slow
def test_reading_goes_on_while_the_dispatcher_is_killed_and_workers_join_when_it_is_back(
    dispatcher: RestartableDispatcher,
) -> None:
    config = dsnb.WorkerConfig(dispatcher_address=dispatcher.target, token=dispatcher.token)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(dsnb.WorkerServer(config))
        consumers = stack.enter_context(Consumers(numbers_in_rounds(3, dispatcher.target)))
        rows = consumers.rounds(50)
        dispatcher.kill()
        rows += consumers.rounds(500)  # more than anybody had in hand
        dispatcher.start()
        rows += consumers.rounds(100)
        dispatcher.wait_until_ready()
        stack.enter_context(dsnb.WorkerServer(config))
        more = consumers.rounds_until(lambda row: row[0] == 0)
        dispatcher.restart()
        more += consumers.rounds(200)
        dispatcher.wait_until_ready()

    assert [row[0] for row in rows[::2]] == [row[0] for row in rows[1::2]] == list(range(0, 3 * len(rows) // 2, 3))
    assert [row[0] for row in rows + more].count(0) == 3


@pytest.mark.slow
def test_a_dispatcher_killed_in_the_middle_of_a_change_brings_it_to_an_end(dispatcher: RestartableDispatcher) -> None:
    config = dsnb.WorkerConfig(dispatcher_address=dispatcher.target, token=dispatcher.token)
    with ExitStack() as stack:
        stack.enter_context(dsnb.WorkerServer(config))
        consumers = stack.enter_context(Consumers(numbers_in_rounds(2, dispatcher.target)))
        rows = consumers.rounds(10)
        for _ in range(3):
            stack.enter_context(dsnb.WorkerServer(config))  # its joining halts the consumers
            dispatcher.restart()
            rows += consumers.rounds(20)
            dispatcher.wait_until_ready()
        service = dsnb.connect(dispatcher.target, token=dispatcher.token)

        def all_give_rounds() -> bool:
            job = service.status().job("job")
            return job is not None and job.rounds is not None and len(job.rounds.workers) == 4 and not job.rounds.halted

        wait_for(all_give_rounds, what="four workers", timeout=DEADLINE_S)
        rows += consumers.rounds(400)
    assert [row[0] for row in rows].count(0) == 4


@pytest.mark.slow
def test_a_consumer_that_was_killed_is_named_and_its_successor_goes_on_with_the_others() -> None:
    times = {**TIMES, "consumer_timeout_ms": 2_000}
    with Cluster(1, dispatcher=times) as cluster:
        (mine, _) = numbers_in_rounds(2, cluster.service)
        environment = {"DSNB_TOKEN": cluster.dispatcher.token}
        arguments = ["-c", CONSUMER, cluster.dispatcher.target, "1", "2"]
        elements = iter(mine).start()
        try:
            with PythonProcess([*arguments, "stay"], env=environment, stdin=True) as process:
                wait_until_all_read(cluster.status)
                got = first(16, elements)
                process.wait_for_line("31", timeout=DEADLINE_S)
                process.kill()
                with pytest.raises(DeadlineExceededError, match="it waits for consumer 1"):
                    got.extend(int(element) for element in elements)
            with PythonProcess([*arguments, "go on"], env=environment) as process:
                wait_until_all_read(cluster.status)
                ahead = got[-1]
                while got[-1] < ahead + 200:
                    got.append(int(next(elements)))
                assert got == list(range(0, len(got) * 2, 2))
                process.wait_for_line(str(got[-1] + 1), timeout=DEADLINE_S)
        finally:
            elements.close()  # type: ignore[attr-defined]
