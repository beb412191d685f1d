"""Every index of a random-access dataset reaches a trainer once, whatever happens to the workers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.testing import assert_resumable
from tests.support.cluster import Cluster
from tests.support.workers import worker_processes

ROWS = 97  # a prime: no number of workers or batches divides it


class Rows:
    """A user's dataset: arrays inside of an object whose class this module defines."""

    def __init__(self, count: int) -> None:
        self.table = np.arange(count * 20_000, dtype=np.int64).reshape(count, -1)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "first": self.table[index, 0]}


def indices(elements: Any) -> list[int]:
    return [int(element["index"]) for element in elements]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_index_comes_once_in_an_epoch(workers: int) -> None:
    with dsnb.start(workers=workers) as svc:
        ds = dsnb.Dataset.from_random_access(Rows(ROWS), shuffle=True)
        read = ds.apply(dsnb.distribute("distributed_epoch", svc))
        first, second = indices(read), indices(read)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second


@pytest.mark.slow
def test_each_index_comes_once_although_a_worker_leaves() -> None:
    with dsnb.start(workers=3) as svc:
        ds = dsnb.Dataset.from_random_access(Rows(ROWS), shuffle=True, seed=1)
        with iter(ds.apply(dsnb.distribute("distributed_epoch", svc, max_outstanding_requests=6))) as elements:
            read = [int(next(elements)["index"]) for _ in range(10)]
            svc.scale(1)
            read += indices(elements)
    assert sorted(read) == list(range(ROWS))


@pytest.mark.slow
def test_the_class_and_its_array_reach_workers_in_other_processes() -> None:
    class Local(Rows):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)["first"]

    with dsnb.start(workers=1, isolation="process") as svc:
        ds = dsnb.Dataset.from_random_access(Local(20))
        read = ds.apply(dsnb.distribute("distributed_epoch", svc))
        assert sorted(int(x) for x in read) == [row * 20_000 for row in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_saved_position_resumes_with_each_index_once(shuffle: bool) -> None:
    with dsnb.start(workers=2) as svc:
        ds = dsnb.Dataset.from_random_access(range(23), shuffle=shuffle)
        assert_resumable(ds, service=svc, processing_mode="distributed_epoch", positions=[0, 1, 7, 22, 23])


def wait_a_little(element: Any) -> int:
    time.sleep(0.005)
    return int(element)


def drawn(element: Any, rng: np.random.Generator) -> Any:
    return {"index": element, "drawn": rng.integers(1 << 60)}


def draws_of(elements: Any) -> dict[int, int]:
    return {int(element["index"]): int(element["drawn"]) for element in elements}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 3])
def test_elements_draw_the_same_with_other_workers_after_one_left_and_after_resuming(seed: int | None) -> None:
    ds = dsnb.Dataset.from_random_access(range(ROWS), shuffle=True).map(int).random_map(drawn, seed=seed)
    with dsnb.start(workers=1) as svc:
        expected = draws_of(ds.apply(dsnb.distribute("distributed_epoch", svc)))
    assert len(set(expected.values())) == ROWS
    with dsnb.start(workers=3) as svc:
        read = ds.apply(dsnb.distribute("distributed_epoch", svc, max_outstanding_requests=6))
        with iter(read) as elements:
            first = [next(elements) for _ in range(20)]
            state = elements.state_dict()
            svc.scale(1)
            assert draws_of([*first, *elements]) == expected
        with iter(read) as elements:
            elements.load_state_dict(state)
            assert draws_of([*first, *elements]) == expected


@pytest.mark.slow
def test_elements_draw_the_same_after_their_worker_was_killed() -> None:
    slowly = dsnb.Dataset.from_random_access(range(ROWS), shuffle=True).map(wait_a_little).random_map(drawn)
    with Cluster(1) as cluster:
        expected = draws_of(slowly.apply(dsnb.distribute("distributed_epoch", cluster.service)))
    with (
        Cluster(0, dispatcher={"worker_timeout_ms": 5_000}) as cluster,
        worker_processes(2, cluster.dispatcher.target, cluster.dispatcher.token) as workers,
        iter(
            slowly.apply(dsnb.distribute("distributed_epoch", cluster.service, max_outstanding_requests=6))
        ) as elements,
    ):
        read = [next(elements) for _ in range(20)]
        workers[0].kill()
        read += elements
    assert len(read) == ROWS
    assert draws_of(read) == expected
