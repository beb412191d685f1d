"""Coordinated reads as a user meets them: whom a round waits for, who may come again, what is refused and shown."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import (
    CancelledError,
    DataLossWarning,
    DeadlineExceededError,
    DsnbWarning,
    FailedPreconditionError,
    InvalidArgumentError,
)
from tests.support.cluster import Cluster
from tests.support.reading import Gate, first, run_in_threads
from tests.support.rounds import ENDLESS, Consumers, close, numbers_in_rounds, wait_until_all_read
from tests.support.waiting import standing_still, wait_for


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(2, dispatcher={"consumer_timeout_ms": getattr(request, "param", 120_000)}) as cluster:
        yield cluster


IMPATIENT_S = 2.0
"""Long enough for a round on a busy machine."""
IMPATIENT = pytest.mark.parametrize("cluster", [int(1000 * IMPATIENT_S)], indirect=True)
"""The consumers of these tests wait for so long only."""


@pytest.mark.slow
@IMPATIENT
def test_a_consumer_that_has_not_come_is_named(cluster: Cluster) -> None:
    mine, second = numbers_in_rounds(2, cluster.service)
    elements = iter(mine).start()
    with pytest.raises(DeadlineExceededError) as raised:
        next(elements)
    assert "consumer 0 of job 'job' has waited" in str(raised.value)
    assert "for round 0; it waits for consumer 1, which has not come" in str(raised.value)
    assert "with its consumer_index" in raised.value.hint

    others = iter(second).start()
    assert [int(next(elements)), int(next(others))] == [0, 1]  # waiting can go on
    close(elements)
    close(others)


@pytest.mark.slow
def test_a_consumer_that_leaves_with_errors_that_nobody_saw_says_goodbye() -> None:
    """Errors are no elements: counted as such they left fewer than none, which no message can tell."""
    patient = {"consumer_timeout_ms": 300, "client_timeout_ms": 600_000, "reconnect_ms": 600_000}
    with Cluster(1, dispatcher=patient) as cluster:
        alone, _ = numbers_in_rounds(2, cluster.service)
        elements = iter(alone.prefetch(4))
        with pytest.raises(DeadlineExceededError):
            next(elements)
        wait_for(lambda: elements.reports()[0].buffered > 0, what="another error to be ready")
        close(elements)
        wait_for(lambda: cluster.job("job").clients == 0, what="the consumer to have left")
        trainer = cluster.job("job").trainer("consumer 0")
        assert trainer is not None
        assert trainer.elements == 0


def test_how_long_a_consumer_waits_is_said_where_the_service_is_started() -> None:
    with dsnb.start(workers=0, name="patience", consumer_timeout_ms=100) as service:
        elements = iter(numbers_in_rounds(1, service)[0]).start()
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="waits for a worker: the service has none") as raised:
            next(elements)
        assert time.monotonic() - began < 60.0
        assert "dsnb.start(consumer_timeout_ms=...)" in raised.value.hint
        close(elements)
    with pytest.raises(InvalidArgumentError, match="`consumer_timeout_ms` is 0"):
        dsnb.start(workers=0, name="impatience", consumer_timeout_ms=0)


@pytest.mark.slow
@IMPATIENT
def test_a_consumer_that_stands_still_is_named_with_the_time(cluster: Cluster) -> None:
    with Consumers(numbers_in_rounds(3, cluster.service)) as consumers:
        consumers.rounds(5)
        with pytest.raises(DeadlineExceededError, match=r"consumer 2, which has taken 5 rounds, the last"):
            first(10_000, consumers.iterators[0])
        rounds = cluster.job("job").rounds
        assert rounds is not None
        assert "consumer 2" in rounds.waits_for
        assert [one.state for one in rounds.consumers] == ["reading"] * 3
        assert rounds.round == rounds.consumers[2].round == 5 < rounds.consumers[0].round
        ahead = [one.round for one in rounds.consumers]
        rest = [int(next(consumers.iterators[2])) for _ in range(ahead[0] - 5)]
        assert len(set(rest)) > 1  # it finds all that the others have had


@pytest.mark.slow
def test_a_pipeline_that_takes_long_is_named_by_its_worker(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def held(number: int) -> bool:
        if number >= 2:
            gate.wait()
        return True

    with Cluster(1, dispatcher={"consumer_timeout_ms": int(1000 * IMPATIENT_S)}) as slow:
        source = dsnb.Dataset.range(ENDLESS).filter(held).repeat()
        policy = dsnb.distribute("parallel_epochs", slow.service, job_name="job", consumer_index=0, num_consumers=1)
        elements = iter(source.apply(policy)).start()
        assert [int(next(elements)), int(next(elements))] == [0, 1]
        with pytest.raises(DeadlineExceededError, match="worker w0, whose pipeline has not produced round 2"):
            next(elements)
        gate.open()
        close(elements)


def test_a_loop_that_is_run_again_goes_on_where_all_are(cluster: Cluster) -> None:
    consumers = Consumers(numbers_in_rounds(2, cluster.service))
    rows = consumers.rounds(10)
    for _ in range(3):
        for iterator in consumers.iterators:
            close(iterator)
        consumers.iterators = [iter(dataset).start() for dataset in consumers.datasets]
        rows += consumers.rounds(10)
    consumers.close()
    assert [row[0] for row in rows[::2]] == list(range(0, 40, 2))
    assert [row[0] for row in rows[1::2]] == list(range(0, 40, 2))


def test_a_consumer_may_be_started_again_while_the_others_go_on(cluster: Cluster) -> None:
    with Consumers(numbers_in_rounds(3, cluster.service)) as consumers:
        rows = consumers.rounds(10)
        for index in (0, 1, 2, 1):
            consumers.rejoin(index)
            wait_until_all_read(cluster.status)
            rows += consumers.rounds(10)
    assert len({tuple(row) for row in rows}) == len(rows) // 2  # two workers, and no turn twice


def test_who_comes_with_an_index_that_is_taken_has_it_from_then_on(cluster: Cluster) -> None:
    with Consumers(numbers_in_rounds(2, cluster.service)) as consumers:
        consumers.rounds(4)
        before, consumers.iterators[1] = consumers.iterators[1], iter(consumers.datasets[1]).start()
        wait_until_all_read(cluster.status)
        consumers.rounds(4)
        with pytest.raises(FailedPreconditionError, match="this reader is no longer consumer 1 of job 'job'"):
            first(1000, before)
        close(before)


@pytest.mark.parametrize(
    "changed,told",
    [
        ({"consumer_index": 0, "num_consumers": 3}, "Existing num_consumers: <2>; got <3>"),
        ({}, "Existing num_consumers: <2>; got <None>"),
    ],
)
def test_another_number_of_consumers_is_refused(cluster: Cluster, changed: dict[str, Any], told: str) -> None:
    source = dsnb.Dataset.range(ENDLESS).repeat()
    with Consumers(numbers_in_rounds(2, cluster.service)):
        other = source.apply(dsnb.distribute("distributed_epoch", cluster.service, job_name="job", **changed))
        with pytest.raises(InvalidArgumentError) as raised:
            iter(other).start()
        assert told in str(raised.value)
        assert "Existing processing mode: <OFF>; got <DYNAMIC>" in str(raised.value)


def test_an_error_of_user_code_stands_in_its_consumers_place() -> None:
    def fail_at_three(number: int) -> int:
        if number == 3:
            raise KeyError("three")
        return number

    with Cluster(1) as one:
        source = dsnb.Dataset.range(ENDLESS).map(fail_at_three).repeat()
        policies = [
            dsnb.distribute("parallel_epochs", one.service, job_name="job", consumer_index=at, num_consumers=2)
            for at in range(2)
        ]
        iterators = [iter(source.apply(policy)).start() for policy in policies]
        assert [[int(next(it)) for it in iterators]] == [[0, 1]]
        assert int(next(iterators[0])) == 2
        with pytest.raises(KeyError, match="three"):
            next(iterators[1])
        assert [int(next(it)) for it in iterators] == [4, 5]
        for iterator in iterators:
            close(iterator)


def test_a_worker_that_drains_gives_what_all_have_received_and_nothing_is_lost(cluster: Cluster) -> None:
    with Consumers(numbers_in_rounds(2, cluster.service)) as consumers:
        rows = consumers.rounds(20)
        cluster.workers[0].drain()
        wait_for(lambda: cluster.workers[0].idle, what="the worker to be done")
        rows += consumers.rounds(400)
        rounds = cluster.job("job").rounds
    assert rounds is not None
    assert (rounds.dropped, rounds.workers) == (0, (cluster.workers[1].name,))
    turns = sorted(row[0] // 2 for row in rows)
    gone = next(turn for turn in range(1000) if turns.count(turn) < 2)
    assert turns == sorted([*range(gone), *range(len(rows) - gone)])


def test_large_elements_are_read_in_rounds_with_few_of_them_on_their_way() -> None:
    source = dsnb.Dataset.range(ENDLESS).map(lambda number: np.full(1 << 18, number)).repeat()
    with Cluster(2) as cluster:
        datasets = [
            source.apply(
                dsnb.distribute(
                    "parallel_epochs", cluster.service, job_name="job", consumer_index=at, num_consumers=3,
                    max_outstanding_requests=1, data_transfer_protocol="grpc",
                )
            )
            for at in range(3)
        ]  # fmt: skip
        iterators = [iter(dataset).start() for dataset in datasets]
        columns = run_in_threads([lambda it=it: [int(next(it)[0]) for _ in range(12)] for it in iterators])
        for iterator in iterators:
            close(iterator)
    rows = [list(row) for row in zip(*columns, strict=True)]
    assert rows == [[at, at + 1, at + 2] for at in range(0, 18, 3) for _ in range(2)]


# ---- pause and cancel


@pytest.mark.slow
@IMPATIENT
def test_a_paused_job_gives_no_rounds_and_its_consumers_wait_without_a_deadline(cluster: Cluster) -> None:
    with Consumers(numbers_in_rounds(2, cluster.service, data_transfer_protocol="grpc")) as consumers:
        rows = consumers.rounds(5)
        cluster.service.pause("job")
        waiting = threading.Thread(target=lambda: rows.extend(consumers.rounds_in_threads(300)), daemon=True)
        waiting.start()
        wait_for(lambda: stands_still(cluster), what="rounds to stand still")
        # What a pause takes counts as no waiting, for twice the time that a consumer waits for a round.
        wait_for(standing_still(lambda: waited(cluster), 2 * IMPATIENT_S), what="the time of waiting to stand still")
        assert waiting.is_alive()  # no consumer got an error about a deadline
        rounds = cluster.job("job").rounds
        assert rounds is not None
        assert "a resume: svc.pause() of" in rounds.waits_for
        cluster.service.resume("job")
        waiting.join(60.0)
        assert len(rows) == 305


def stands_still(cluster: Cluster) -> bool:
    """Whether all tasks are paused, and consumers have taken what had come."""

    def at() -> list[int]:
        rounds = cluster.job("job").rounds
        return [one.round for one in rounds.consumers] if rounds is not None else []

    before = at()
    return all(task.state == "paused" for task in cluster.job("job").tasks) and at() == before


def waited(cluster: Cluster) -> int:
    return sum(trainer.wait_ns for trainer in cluster.job("job").trainers)


def test_who_begins_to_read_rounds_of_a_paused_job_is_warned_and_leaves_nothing_where_that_is_an_error(
    cluster: Cluster,
) -> None:
    mine, second = numbers_in_rounds(2, cluster.service)
    elements = iter(mine).start()
    cluster.service.pause("job")
    with pytest.warns(DsnbWarning, match=r"job 'job' is paused \(by svc.pause\(\) of .*svc.resume\('job'\)"):
        others = iter(second).start()
    close(others)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DsnbWarning, match="is paused"):
            iter(second).start()
    assert cluster.job("job").clients == 1
    cluster.service.resume("job")
    others = iter(second).start()
    assert [int(next(elements)), int(next(others))] == [0, 1]
    close(elements)
    close(others)


@pytest.mark.slow
def test_each_consumer_of_a_cancelled_job_is_told_by_whom_and_others_may_begin_anew(cluster: Cluster) -> None:
    policy = {"data_transfer_protocol": "grpc"}
    with Consumers(numbers_in_rounds(2, cluster.service, **policy)) as consumers:
        consumers.rounds(5)
        cluster.service.cancel("job")

        def to_the_end(reader: Iterator[Any]) -> None:
            for _ in range(2):  # it stays so
                with pytest.raises(CancelledError, match=r"the job 'job' was cancelled by svc.cancel\(\) of "):
                    first(10_000, reader)

        run_in_threads([lambda it=it: to_the_end(it) for it in consumers.iterators])
        with Consumers(numbers_in_rounds(3, cluster.service, **policy)) as others:
            assert others.rounds_in_threads(2) == [[0, 1, 2], [0, 1, 2]]  # one of each worker
    assert not any("bug" in event.text for event in cluster.status().events)


def test_a_consumer_that_waits_for_another_is_ended_when_its_job_is_cancelled(cluster: Cluster) -> None:
    with Consumers(numbers_in_rounds(2, cluster.service)) as consumers:
        consumers.rounds(3)

        def wait() -> None:
            with pytest.raises(CancelledError):
                first(10_000, consumers.iterators[0])

        run_in_threads([wait, lambda: cluster.service.cancel("job")])


def test_a_worker_that_comes_while_a_consumer_is_busy_is_taken_in_all_the_same(cluster: Cluster) -> None:
    with Consumers(numbers_in_rounds(2, cluster.service)) as consumers, warnings.catch_warnings():
        warnings.simplefilter("error", DataLossWarning)
        consumers.rounds(5)
        cluster.add_worker()  # nobody calls next meanwhile

        def three() -> bool:
            rounds = cluster.job("job").rounds
            return rounds is not None and len(rounds.workers) == 3 and not rounds.halted

        wait_for(three, what="three workers that give rounds")
        rows = consumers.rounds(300)
    assert sum(row[0] == 0 for row in rows) == 1
