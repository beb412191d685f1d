"""Section 1G: coordinated reads. A round is n elements of one worker that stand next to each other, for n consumers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import dsnb
from dsnb.errors import DataLossWarning
from tests.conformance.conftest import MakeCluster
from tests.support.cluster import Cluster
from tests.support.reading import run_in_threads
from tests.support.rounds import Consumers, Row, numbers_in_rounds

Rows = list[Row]


@contextmanager
def losses_expected() -> Iterator[None]:
    """Workers go: each consumer is told, which is tested elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        yield


def beginnings(rows: Rows) -> int:
    """How many workers have begun: each begins at 0."""
    return sum(row[0] == 0 for row in rows)


def until_workers_give_rounds(consumers: Consumers, service: Cluster, count: int) -> Rows:
    """Read on until so many workers take part."""
    rows = consumers.rounds(1)
    for _ in range(500):
        rounds = service.job("job").rounds
        if rounds is not None and not rounds.halted and len(rounds.workers) == count:
            return rows + consumers.rounds(2 * count)  # each of them has given one
        rows += consumers.rounds(20)
    raise AssertionError(f"there are never {count} workers: {service.job('job').rounds}")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("consumers", [1, 2, 5])
def test_line_092_rounds_of_consecutive_elements(
    cluster: MakeCluster, transfer: str, workers: int, consumers: int
) -> None:
    datasets = numbers_in_rounds(consumers, cluster(workers).service, data_transfer_protocol=transfer)
    with Consumers(datasets) as readers:
        rows = readers.rounds(100)

    # Each worker gives its turns in order, and they take turns.
    turns = [[row[0] for row in rows[at::workers]] for at in range(workers)]
    assert turns == [[consumers * turn for turn in range(len(rows[at::workers]))] for at in range(workers)]


def test_line_093_consumers_that_are_created_again_go_on(cluster: MakeCluster) -> None:
    service = cluster(1)
    with Consumers(numbers_in_rounds(3, service.service)) as consumers:
        before = consumers.rounds(20)
    with Consumers(numbers_in_rounds(3, service.service)) as consumers:
        after = consumers.rounds(20)

    assert [row[0] for row in before + after] == list(range(0, 120, 3))


@pytest.mark.slow
def test_line_094_all_of_a_round_are_of_one_bucket(cluster: MakeCluster) -> None:
    hosts, replicas, batch, edges, rounds = 3, 5, 10, (30, 60), 4 * 3
    consumers = hosts * replicas

    def bucket(length: int) -> int:
        return int(np.searchsorted(edges, length, side="right"))

    # Each host takes its replicas' batches together, as its own consumer.
    source = (
        dsnb.Dataset.range(1 << 30)
        .map(lambda number: np.ones(1 + int(number) * 7919 % 90, np.int64))
        .group_by_window(
            lambda sequence: int(np.searchsorted(edges, len(sequence), side="right")),
            lambda _key, window: window.padded_batch(batch),
            window_size=batch,
        )
        .group_by_window(
            lambda padded: int(np.searchsorted(edges, padded.shape[1], side="right")),
            lambda _key, window: window,
            window_size=consumers,
        )
        .repeat()
    )
    service = cluster(4)

    def host(number: int) -> dsnb.Dataset:
        replica = [
            source.apply(
                dsnb.distribute(
                    "parallel_epochs",
                    service.service,
                    job_name="buckets",
                    consumer_index=number * replicas + index,
                    num_consumers=consumers,
                )
            )
            for index in range(replicas)
        ]
        numbers = dsnb.Dataset.range(replicas)
        # All at once: consumers wait for one another.
        return numbers.interleave(lambda at: replica[int(at)], cycle_length=replicas, num_parallel_calls=replicas)

    iterators = [iter(host(number)) for number in range(hosts)]
    batches = run_in_threads([lambda it=it: list(islice(it, rounds * replicas)) for it in iterators], 60.0)
    for iterator in iterators:
        iterator.close()

    seen = []
    for at in range(rounds):
        of_round = [found for host in batches for found in host[at * replicas : (at + 1) * replicas]]
        assert len(of_round) == consumers
        assert {len(found) for found in of_round} == {batch}
        keys = {bucket(found.shape[1]) for found in of_round}
        assert len(keys) == 1, f"round {at} is of several buckets: {keys}"
        seen += keys
    assert len(set(seen)) > 1  # there is more than one to confuse


def test_line_095_data_that_end_give_whole_rounds(cluster: MakeCluster) -> None:
    finite = dsnb.Dataset.range(10).filter(lambda _x: True)  # nobody knows how many are left
    with Consumers(in_rounds(finite, 3, cluster(1))) as consumers:
        assert consumers.rounds(3) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        for iterator in consumers.iterators:
            assert list(iterator) == []


def test_line_096_data_that_are_known_to_end_can_be_read(cluster: MakeCluster) -> None:
    service = cluster(1)
    with Consumers(in_rounds(dsnb.Dataset.range(5), 2, service)) as consumers:
        assert consumers.rounds(2) == [[0, 1], [2, 3]]

    known = dsnb.register_dataset(service.service, dsnb.Dataset.range(5))
    alone = dsnb.from_dataset_id(
        "parallel_epochs", service.service, known, job_name="job", consumer_index=0, num_consumers=1
    )
    assert [int(number) for number in alone] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("source", [dsnb.Dataset.range(10).repeat(), dsnb.Dataset.range(10).filter(lambda _x: True)])
def test_line_097_the_reader_sees_no_end(cluster: MakeCluster, source: dsnb.Dataset) -> None:
    (dataset,) = in_rounds(source, 1, cluster(1))
    assert dataset.cardinality() == source.cardinality()


@pytest.mark.slow
@pytest.mark.parametrize("more", [1, 3, 10])
def test_line_098_workers_that_are_added_join(cluster: MakeCluster, more: int) -> None:
    service = cluster(3)
    with Consumers(numbers_in_rounds(7, service.service)) as consumers:
        rows = consumers.rounds(25)
        for _ in range(more):
            service.add_worker()
        rows += until_workers_give_rounds(consumers, service, 3 + more)
        rows += consumers.rounds(25)

    assert beginnings(rows) == 3 + more


@pytest.mark.slow
def test_line_099_a_worker_is_stopped_and_comes_back(cluster: MakeCluster) -> None:
    service = cluster(3)
    with Consumers(numbers_in_rounds(5, service.service)) as consumers, losses_expected():
        rows = consumers.rounds(20)
        port = int(service.workers[1].address.rpartition(":")[2])
        service.workers.pop(1).stop()
        rows += consumers.rounds(20)
        service.add_worker(port=port)
        rows += consumers.rounds_until(lambda row: row[0] == 0)
        rows += consumers.rounds(20)

    assert beginnings(rows) == 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["parallel_epochs", "distributed_epoch"])
def test_line_100_all_workers_go_and_come_again(cluster: MakeCluster, tmp_path: Path, mode: str) -> None:
    service = cluster(3, dispatcher={"work_dir": tmp_path, "worker_timeout_ms": 1000})
    datasets = in_rounds(dsnb.Dataset.range(1 << 40).repeat(), 5, service, mode=mode)
    with (Anywhere if mode == "distributed_epoch" else Consumers)(datasets) as consumers, losses_expected():
        consumers.rounds(20)
        for _ in range(3):
            service.workers.pop(0).stop()
            consumers.rounds(20)
            service.add_worker()
            consumers.rounds(20)
        service.add_worker()
        service.restart_dispatcher()
        for _ in range(3):
            service.workers.pop(0).stop()
        until_workers_give_rounds(consumers, service, 1)
        consumers.rounds(20)


class Anywhere(Consumers):
    """Consumers of a job whose workers share the numbers: each round is still of one worker's, in order."""

    def check(self, row: Row) -> Row:
        assert row == sorted(set(row)), f"no round: {row}"
        return row


@pytest.mark.slow
@pytest.mark.parametrize("elements,consumers", [(1000, 5), (1003, 5), (1000, 20), (4, 20), (0, 20)])
def test_line_101_consumers_take_their_elements_in_parallel(
    cluster: MakeCluster, elements: int, consumers: int
) -> None:
    finite = dsnb.Dataset.range(elements).filter(lambda _x: True)
    with Consumers(in_rounds(finite, consumers, cluster(1))) as readers:
        columns = run_in_threads([lambda it=it: [int(element) for element in it] for it in readers.iterators], 60.0)

    whole = elements // consumers * consumers
    assert columns == [list(range(at, whole, consumers)) for at in range(consumers)]


def in_rounds(
    source: dsnb.Dataset, consumers: int, service: Cluster, mode: str = "parallel_epochs"
) -> list[dsnb.Dataset]:
    """A dataset for each consumer."""
    return [
        source.apply(dsnb.distribute(mode, service.service, job_name="job", consumer_index=at, num_consumers=consumers))
        for at in range(consumers)
    ]
