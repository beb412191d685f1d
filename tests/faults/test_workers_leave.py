"""Workers that are stopped in the middle of a DYNAMIC read cost its reader nothing, and no error reaches it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from tests.faults.chaos import Scene, paced
from tests.support.cluster import Cluster
from tests.support.marks import soak

REPETITIONS = 60
SIZE = 12


def short_repetitions() -> dsnb.Dataset:
    """Workers ask for splits all the time: each repetition has few."""
    return dsnb.Dataset.range(SIZE).map(paced(0.0005)).repeat(REPETITIONS)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=5) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "remove"])
@pytest.mark.parametrize("transfer", ["local", "tcp", soak("grpc")])
def test_workers_that_are_stopped_one_after_another_cost_the_reader_nothing(
    cluster: Cluster, how: str, transfer: str
) -> None:
    distributed = dsnb.distribute("distributed_epoch", cluster.service, data_transfer_protocol=transfer)
    got: list[int] = []
    with iter(short_repetitions().apply(distributed)) as elements:
        for worker in cluster.workers[1:]:
            got += map(int, itertools.islice(elements, 100))
            if how == "stop":
                worker.stop()
            else:
                cluster.service.remove(worker.name)
        got += map(int, elements)
    assert Counter(got) == dict.fromkeys(range(SIZE), REPETITIONS)


@pytest.mark.slow
def test_workers_that_are_interrupted_cost_the_reader_nothing(tmp_path: Path) -> None:
    with Scene(tmp_path, workers=5) as scene:
        scene.register(short_repetitions())
        reader = scene.read()
        for number, worker in enumerate(scene.workers[1:], 1):
            scene.wait_for(reader, 100 * number)
            worker.interrupt()
        (end,) = scene.ended()
        assert end == {"errors": [], "warnings": []}
        assert Counter(reader.got) == dict.fromkeys(range(SIZE), REPETITIONS)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 16], ids=["elements", "batches"])
@pytest.mark.parametrize("trainer", ["", "a trainer"], ids=["alone", "shared"])
def test_what_the_only_worker_was_not_given_before_it_left_comes_of_the_next_one(
    tmp_path: Path, trainer: str, batch: int
) -> None:
    with Scene(tmp_path, workers=1) as scene:
        scene.register(dsnb.Dataset.range(1_500).map(paced(0.0005)))
        reader = scene.read(trainer=trainer, batch=batch, cache={"on_lag": "spill"})
        scene.wait_for(reader, 100)
        scene.workers[0].terminate()
        assert scene.workers[0].wait_for_exit() == 0, "it waits for the rest of a batch that it is not to make"
        scene.add_worker()
        assert scene.ended() == [{"errors": [], "warnings": []}]
        assert Counter(reader.got) == dict.fromkeys(range(1_500), 1)


@pytest.mark.slow
def test_a_pass_that_ended_is_over_for_its_reader_when_all_its_workers_are_gone(tmp_path: Path) -> None:
    with Scene(tmp_path, workers=2, work_dir=tmp_path / "work") as scene:
        scene.register(dsnb.Dataset.range(1_500).map(paced(0.0005)))
        reader = scene.read(mode="OFF", job_name="train", transfer="shared_memory", pause_s=0.001)
        scene.wait_for(reader, 20)
        scene.workers[1].terminate()  # leaves when its part is read
        scene.cluster.restart_dispatcher()
        scene.suspend(scene.workers[0].pid, 6.0)  # is lost, and its part given up
        end = reader.end()
        assert end["errors"] == []
        # Where the machine is busy, reading w1's part takes longer than the 3 s that it stays: a second warning.
        others = [text for text in end["warnings"] if "worker w1 was stopped" not in text]
        assert ["worker w0 was lost" in text for text in others] == [True]
        scene.go_on()
