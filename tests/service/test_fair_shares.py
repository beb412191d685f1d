"""Readers who share a small epoch all get some of it, with default arguments."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

import dsnb
from tests.support.cluster import Cluster
from tests.support.marks import slow
from tests.support.reading import run_in_threads


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["local", "grpc", "tcp", "shared_memory"])
@pytest.mark.parametrize("count, readers", [(60, 2), (200, 2), (200, 3)])
def test_readers_of_a_small_shared_epoch_get_fair_shares(count: int, readers: int, transfer: str) -> None:
    with Cluster(1) as cluster:
        options = {"job_name": "train", "data_transfer_protocol": transfer}

        opened = threading.Barrier(readers)

        def train() -> list[int]:
            got = []
            shared = dsnb.distribute("distributed_epoch", cluster.service, **options)
            with iter(dsnb.Dataset.range(count).apply(shared)).start() as elements:
                opened.wait(30.0)
                for number in elements:
                    got.append(int(number))
                    time.sleep(0.005)  # a step of training
            return got

        shares = run_in_threads([train] * readers, 60.0)
    assert Counter(number for share in shares for number in share) == Counter(range(count))
    assert min(map(len, shares)) >= count // (3 * readers), [len(share) for share in shares]


@pytest.mark.parametrize("transfer", ["local", "grpc", slow("tcp"), slow("shared_memory")])
def test_readers_that_wait_for_a_slow_pipeline_take_turns(transfer: str) -> None:
    opened = threading.Barrier(3)

    def prepare(number: int) -> int:
        time.sleep(0.005)
        return number

    with Cluster(1) as cluster:
        slow = dsnb.Dataset.range(90).map(prepare)
        distribute = dsnb.distribute(
            "distributed_epoch", cluster.service, job_name="train", data_transfer_protocol=transfer
        )

        def train() -> int:
            with iter(slow.apply(distribute)).start() as elements:
                opened.wait(30.0)
                return sum(1 for _ in elements)

        shares = run_in_threads([train] * 3, 60.0)
    assert sum(shares) == 90
    assert min(shares) >= 15, shares


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["local", "grpc", "tcp", "shared_memory"])
def test_a_batch_may_be_larger_than_what_a_worker_gives_at_first(transfer: str) -> None:
    with Cluster(1) as cluster:
        distribute = dsnb.distribute("distributed_epoch", cluster.service, data_transfer_protocol=transfer)
        batches = run_in_threads([lambda: list(dsnb.Dataset.range(1000).apply(distribute).batch(300))], 30.0)[0]
    assert [len(batch) for batch in batches] == [300, 300, 300, 100]
