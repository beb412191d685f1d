"""`Options(deterministic=True)` with processes that are killed: the sequence has one hash, whatever happens to them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.faults.chaos import Scene
from tests.support.cluster import Cluster
from tests.support.dispatchers import RestartableDispatcher
from tests.support.marks import soak
from tests.support.processes import PythonProcess
from tests.support.reading import joined, run_in_threads
from tests.support.workers import worker_process, worker_processes

pytestmark = pytest.mark.slow

COUNT = 1_500
TIMES = {"reconnect_ms": 300, "worker_timeout_ms": 5_000}


def row(number: int, generator: np.random.Generator) -> np.ndarray:
    """A row with its number and random ones, after some time."""
    time.sleep(0.001)
    return np.concatenate(([number], generator.integers(1 << 40, size=number % 5)))


def most_of(row: np.ndarray) -> bool:
    return bool(row[0] % 7 != 0 and not 64 <= row[0] < 160)  # nothing of some units


DATA = dsnb.Dataset.range(COUNT).random_map(row, seed=3).filter(most_of)
ORDERED = DATA.with_options(dsnb.Options(deterministic=True))


@pytest.fixture(scope="module")
def expected() -> str:
    """The hash of what a local read gives."""
    return sha256(DATA)


def sha256(elements: Iterable[np.ndarray]) -> str:
    found = hashlib.sha256()
    for element in elements:
        found.update(f"{element.dtype} {element.shape} ".encode() + element.tobytes())
    return found.hexdigest()


def read(service: Any, **settings: Any) -> Any:
    return iter(ORDERED.apply(dsnb.distribute("distributed_epoch", service, **settings)))


def taken(count: int, elements: Iterator[Any]) -> list[Any]:
    return [next(elements) for _ in range(count)]


@contextmanager
def service(workers: int) -> Iterator[tuple[Cluster, list[PythonProcess]]]:
    with (
        Cluster(0, dispatcher=TIMES) as cluster,
        worker_processes(workers, cluster.dispatcher.target, cluster.dispatcher.token) as processes,
    ):
        yield cluster, processes


@pytest.mark.parametrize("workers, transfer", [(1, "grpc"), soak(2, "shared_memory"), soak(2, "tcp"), (5, "grpc")])
def test_the_number_of_workers_does_not_matter(expected: str, workers: int, transfer: str) -> None:
    with service(workers) as (cluster, _):
        assert sha256(read(cluster.service, data_transfer_protocol=transfer)) == expected


@pytest.mark.parametrize("workers, transfer", [soak(1, "grpc"), (2, "shared_memory"), (2, "tcp"), soak(5, "grpc")])
def test_a_killed_worker_and_new_ones_do_not_matter(expected: str, workers: int, transfer: str) -> None:
    with service(workers) as (cluster, processes), ExitStack() as stack:
        elements = read(cluster.service, data_transfer_protocol=transfer)
        got = taken(200, elements)
        processes[0].kill()
        for _ in range(2):
            stack.enter_context(worker_process(cluster.dispatcher.target, cluster.dispatcher.token))
        got += taken(200, elements)
        assert sha256([*got, *elements]) == expected


def test_scaling_up_and_down_does_not_matter(expected: str) -> None:
    with dsnb.start(workers=1, isolation="process") as svc:
        elements, got = read(svc), []
        for workers in (4, 2, 3, 1):
            got += taken(150, elements)
            svc.scale(workers)
        assert sha256([*got, *elements]) == expected


def test_two_ranks_are_continued_by_three_while_a_worker_dies(expected: str) -> None:
    def begin(rank: int) -> tuple[list[np.ndarray], Any]:
        with read(cluster.service, job_name="train", rank=rank, world_size=2) as elements:
            return taken(300, elements), json.loads(json.dumps(elements.state_dict()))

    def rest(rank: int) -> list[np.ndarray]:
        elements = read(cluster.service, job_name="train", rank=rank, world_size=3, at_end="pad")
        elements.load_state_dict(begun[0][1])
        got = taken(50, elements)
        if rank == 0:
            processes[1].kill()
        return [element for element, filler in [*got, *elements] if not filler]

    with service(2) as (cluster, processes):
        begun = run_in_threads([lambda rank=rank: begin(rank) for rank in range(2)], timeout=120.0)
    with service(3) as (cluster, processes):
        ended = run_in_threads([lambda rank=rank: rest(rank) for rank in range(3)], timeout=120.0)
    assert sha256([*by_steps([got for got, _ in begun]), *by_steps(ended)]) == expected


def by_steps(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    """The elements of all ranks, step by step."""
    longest = max(map(len, parts))
    return joined([part[step] for part in parts if step < len(part)] for step in range(longest))


def test_a_killed_dispatcher_does_not_matter(expected: str, tmp_path: Path) -> None:
    with (
        RestartableDispatcher(tmp_path / "work") as dispatcher,
        worker_processes(3, dispatcher.target, dispatcher.token) as workers,
    ):
        elements, got = read(dispatcher.target), []
        for _ in range(3):
            got += taken(200, elements)
            dispatcher.restart()
            got += taken(100, elements)
            dispatcher.wait_until_ready()
        workers[0].kill()
        assert sha256([*got, *elements]) == expected


def test_a_rank_that_is_killed_rejoins_at_a_whole_step(tmp_path: Path) -> None:
    """The other waits for it, and both go on with the same steps; only what it held is missing."""
    with Scene(tmp_path, workers=2, client_timeout_ms=2_000) as scene:
        scene.register(
            dsnb.Dataset.range(COUNT).map(lambda number: number).with_options(dsnb.Options(deterministic=True))
        )
        one, other = (scene.read(rank=rank, world_size=2, pause_s=0.002) for rank in range(2))
        scene.wait_for(other, 200)
        other.kill()
        again = scene.read(rank=1, world_size=2)
        assert one.end()["errors"] == again.end()["errors"] == []
    assert one.got == list(range(0, COUNT, 2))
    assert other.got == list(range(1, 2 * len(other.got), 2))
    assert again.got == list(range(again.got[0], COUNT, 2))
    assert again.got[0] % 2 == 1
