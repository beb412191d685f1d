"""Section 1C: readers of one job name share one pass; pass k of all readers is one iteration."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import dsnb
from dsnb.errors import DsnbWarning, InvalidArgumentError
from tests.conformance.conftest import MakeCluster
from tests.support.reading import first, joined, numbers, read_alternately, run_in_threads
from tests.support.waiting import wait_for

EMPTY = pytest.mark.filterwarnings("ignore:pass .* has already been read to its end:dsnb.errors.DsnbWarning")


def job(dataset: dsnb.Dataset, service: Any, name: str | None, transfer: str, **options: Any) -> dsnb.Dataset:
    """A dataset that is read through a job."""
    options = {"data_transfer_protocol": transfer, "job_name": name, **options}
    return dataset.apply(dsnb.distribute(options.pop("processing_mode", "parallel_epochs"), service, **options))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in turn", "at once", "one after the other"])
@pytest.mark.parametrize("limit", [None, 1], ids=["ahead", "one outstanding"])
def test_line_036_shared_job_name(cluster: MakeCluster, transfer: str, way: str, limit: int | None) -> None:
    made = cluster(1)
    shuffled = dsnb.Dataset.range(1000).shuffle(1000)
    shared = [job(shuffled, made.service, "job", transfer, max_outstanding_requests=limit) for _ in range(2)]
    clients = [iter(dataset).start() for dataset in shared]
    if way == "in turn":
        got = read_alternately(clients)
    elif way == "at once":
        got = run_in_threads([lambda client=client: list(client) for client in clients])
    else:

        def readers() -> int:
            return sum(worker.readers for worker in made.status().workers)

        got = [first(500, clients[0])]
        wait_for(lambda: readers() == 2, what="both to be known")
        clients[0].close()
        # What it had and did not read goes to whoever reads on; nobody's end waits for it to come back.
        wait_for(lambda: readers() == 1, what="the first to have left")
        got.append(list(clients[1]))

    assert sorted(numbers(joined(got))) == list(range(1000))


@pytest.mark.slow
def test_line_036_readers_that_take_turns_both_get_elements_to_the_end(cluster: MakeCluster, transfer: str) -> None:
    """As the original's own test reads: 200 by each in turn, then the rest by one after the other."""
    service = cluster(1).service

    def client() -> Any:
        shuffled = dsnb.Dataset.range(1000).shuffle(1000)
        return iter(job(shuffled, service, "job", transfer, max_outstanding_requests=1))

    one, other = client(), client()
    got = [int(next(reader)) for _ in range(200) for reader in (one, other)]

    assert sorted([*got, *numbers(one), *numbers(other)]) == list(range(1000))


def test_line_037_different_job_names(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    clients = [iter(job(dsnb.Dataset.range(100), service, name, transfer)) for name in ("job 1", "job 2")]

    assert [numbers(got) for got in read_alternately(clients)] == [list(range(100))] * 2


def test_line_038_shared_job_name_multi_iteration(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    one, other = (job(dsnb.Dataset.range(10), service, "job", transfer) for _ in range(2))

    assert numbers(one) == list(range(10))
    with pytest.warns(DsnbWarning, match=r"pass 1 of job 'job' has already been read to its end"):
        assert numbers(other) == []
    assert numbers(other) == list(range(10))
    with pytest.warns(DsnbWarning, match=r"pass 2 of job 'job' has already been read to its end"):
        assert numbers(one) == []


@pytest.mark.slow
@EMPTY
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("limit", [None, 1], ids=["ahead", "one outstanding"])
def test_line_039_shared_job_name_repeat(cluster: MakeCluster, transfer: str, where: str, limit: int | None) -> None:
    service = cluster(1).service
    hundred = dsnb.Dataset.range(100)

    def client() -> dsnb.Dataset:
        if where == "before":
            return job(hundred.repeat(3), service, "job", transfer, max_outstanding_requests=limit)
        return job(hundred, service, "job", transfer, max_outstanding_requests=limit).repeat(3)

    one, other = read_alternately([iter(client()), iter(client())])

    assert Counter(numbers(one + other)) == dict.fromkeys(range(100), 3)


@pytest.mark.slow
def test_line_040_shared_job_name_multiple_epochs(cluster: MakeCluster, transfer: str) -> None:
    dataset = job(dsnb.Dataset.range(10), cluster(1).service, "job", transfer)

    assert [numbers(dataset) for _ in range(5)] == [list(range(10))] * 5


def test_line_041_same_name_with_another_mode(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    one = job(dsnb.Dataset.range(10), service, "job", transfer)
    other = job(dsnb.Dataset.range(10), service, "job", transfer, processing_mode="distributed_epoch")

    with pytest.raises(InvalidArgumentError, match="found an existing job with different parameters") as error:
        list(dsnb.Dataset.zip(one, other))
    assert "Existing processing mode: <OFF>; got <DYNAMIC>" in str(error.value)
    assert numbers(job(dsnb.Dataset.range(10), service, "another job", transfer)) == list(range(10))


# The lines from here on are of an interface that the original has removed, with names for datasets. What they promise
# holds for jobs: the same pipeline, registered again, is the same dataset.


def test_line_042_the_second_is_empty_once_the_first_has_read_all(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service

    assert numbers(job(dsnb.Dataset.range(20), service, "job", transfer)) == list(range(20))
    with pytest.warns(DsnbWarning, match=r"svc\.forget\('job'\)"):
        assert numbers(job(dsnb.Dataset.range(20), service, "job", transfer)) == []
    service.forget("job")
    assert numbers(job(dsnb.Dataset.range(20), service, "job", transfer)) == list(range(20))


@EMPTY
def test_line_043_repeat_inside_the_shared_dataset(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    repeated = dsnb.Dataset.range(20).repeat(5)

    assert numbers(job(repeated, service, "job", transfer)) == list(range(20)) * 5
    assert numbers(job(repeated, service, "job", transfer)) == []


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1], ids=["ahead", "one outstanding"])
def test_line_044_infinite_shared_dataset(cluster: MakeCluster, transfer: str, limit: int | None) -> None:
    service = cluster(1).service
    endless = dsnb.Dataset.range(1_000_000_000)
    one, other = (iter(job(endless, service, "job", transfer, max_outstanding_requests=limit)) for _ in range(2))
    values = [*first(10, one), *first(10, other)]
    one.close()
    other.close()

    assert len(set(values)) == 20


@pytest.mark.slow
def test_line_045_other_jobs_are_read_in_full(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    twenty = dsnb.Dataset.range(20)
    first_id = dsnb.register_dataset(service, twenty, dataset_id="first")
    second_id = dsnb.register_dataset(service, twenty, dataset_id="second")
    readers = [
        job(twenty, service, "job 1", transfer),
        job(twenty, service, "job 2", transfer),
        job(twenty, service, None, transfer),
        dsnb.from_dataset_id("parallel_epochs", service, first_id, job_name="job 3", data_transfer_protocol=transfer),
        dsnb.from_dataset_id("parallel_epochs", service, second_id, job_name="job 4", data_transfer_protocol=transfer),
        dsnb.from_dataset_id("parallel_epochs", service, first_id, data_transfer_protocol=transfer),
    ]

    assert [numbers(got) for got in read_alternately([*map(iter, readers)])] == [list(range(20))] * 6


def test_line_046_another_dataset_under_the_same_name(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    with iter(job(dsnb.Dataset.range(10), service, "job", transfer)).start() as reading:
        with pytest.raises(InvalidArgumentError, match=r"existing job with different parameters.*range\(20\)"):
            iter(job(dsnb.Dataset.range(20), service, "job", transfer)).start()
        assert numbers(reading) == list(range(10))

    dsnb.register_dataset(service, dsnb.Dataset.range(10), dataset_id="numbers")
    pairs = dsnb.Dataset.zip(dsnb.Dataset.range(10), dsnb.Dataset.range(10))
    with pytest.raises(InvalidArgumentError, match="Datasets with the same ID should have the same structure"):
        dsnb.register_dataset(service, pairs, dataset_id="numbers")
