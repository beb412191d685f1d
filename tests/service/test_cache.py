"""`Dataset.cache` inside a distributed pipeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import dsnb

N = 60


def squares(calls: Path) -> dsnb.Dataset:
    path = str(calls)

    def square(x: int) -> int:
        with open(path, "ab", buffering=0) as file:
            file.write(b".")
        return x * x

    return dsnb.Dataset.range(N).map(square)


def count(calls: Path) -> int:
    return os.path.getsize(calls)


WANTED = [x * x for x in range(N)]


@pytest.fixture(params=["memory", "directory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "memory" else str(tmp_path / "cache")


def read(dataset: dsnb.Dataset) -> list[int]:
    return sorted(int(x) for x in dataset)


def test_the_workers_of_a_job_record_once_between_them(tmp_path: Path, where: str | None) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2) as service:
        ds = squares(calls).cache(where).apply(dsnb.distribute("parallel_epochs", service))
        for _ in range(2):
            assert read(ds) == sorted(2 * WANTED)
        assert count(calls) == N


def test_worker_processes_record_once_between_them(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2, isolation="process") as service:
        ds = squares(calls).cache(tmp_path / "cache").apply(dsnb.distribute("parallel_epochs", service))
        for _ in range(2):
            assert read(ds) == sorted(2 * WANTED)
        assert count(calls) == N


def test_trainers_that_share_a_job_s_cache_record_once(tmp_path: Path, where: str | None) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=1) as service:
        for _ in range(2):
            for trainer in "ab":
                ds = squares(calls).cache(where).repeat()
                shared: Any = dsnb.distribute(
                    "parallel_epochs", service, job_name="job", cross_trainer_cache=dsnb.CrossTrainerCache(trainer)
                )
                assert len(list(ds.apply(shared).take(N))) == N
        assert count(calls) <= N * (1 if where else 2)


def test_each_worker_records_the_shard_that_is_its_own(tmp_path: Path, where: str | None) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2) as service:
        ds = squares(calls).cache(where).apply(dsnb.distribute(dsnb.ShardingPolicy.DATA, service))
        for _ in range(2):
            assert read(ds) == WANTED
        assert count(calls) == N


def test_a_distributed_dataset_can_be_recorded_by_its_reader(tmp_path: Path, where: str | None) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2) as service:
        ds = squares(calls).apply(dsnb.distribute("distributed_epoch", service)).cache(where)
        first = [int(x) for x in ds]
        assert sorted(first) == WANTED
        assert [int(x) for x in ds] == first
        assert count(calls) == N
