"""`Dataset.cache` inside a distributed pipeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.cache.recordings.catalogue import entries, verify
from dsnb.errors import UnimplementedError

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


@pytest.mark.slow
def test_worker_processes_record_once_between_them(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2, isolation="process") as service:
        ds = squares(calls).cache(tmp_path / "cache").apply(dsnb.distribute("parallel_epochs", service))
        for _ in range(2):
            assert read(ds) == sorted(2 * WANTED)
        assert count(calls) == N


@pytest.mark.slow
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


# ------------------------------------------------------------------------------------------------------ split by split


def dynamic(dataset: dsnb.Dataset, service: dsnb.DataService) -> dsnb.Dataset:
    return dataset.apply(dsnb.distribute("distributed_epoch", service))


@pytest.mark.slow
def test_each_split_is_recorded_by_whoever_gets_it(tmp_path: Path, where: str | None) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2) as service:
        ds = dynamic(squares(calls).cache(where), service)
        for _ in range(3):
            assert read(ds) == WANTED
        assert count(calls) == N


@pytest.mark.slow
def test_splits_with_any_number_of_elements_are_recorded(tmp_path: Path, where: str | None) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2) as service:
        several = squares(calls).flat_map(lambda x: dsnb.Dataset.from_tensors(x).repeat(x % 3))
        ds = dynamic(several.filter(lambda x: x % 2 == 0).cache(where), service)
        wanted = sorted(x for x in WANTED for _ in range(x % 3) if x % 2 == 0)
        for _ in range(3):
            assert read(ds) == wanted
        assert count(calls) == N


@pytest.mark.slow
def test_files_are_recorded_one_by_one(tmp_path: Path, where: str | None) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number}{line}\n" for line in range(number * 3)))
    files = [str(tmp_path / f"{number}.txt") for number in range(5)]
    with dsnb.start(workers=2) as service:
        ds = dynamic(dsnb.TextLineDataset(files).map(int).cache(where), service)
        for _ in range(2):
            assert read(ds) == sorted(int(f"{number}{line}") for number in range(5) for line in range(number * 3))


@pytest.mark.slow
def test_a_job_that_ends_early_leaves_its_splits_and_another_one_makes_the_rest(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for workers in (2, 1):
        with dsnb.start(workers=workers) as service:
            with iter(dynamic(squares(calls).cache(tmp_path / "cache"), service)) as elements:
                part = [int(next(elements)) for _ in range(5)]
            assert set(part) <= set(WANTED)
    with dsnb.start(workers=2) as service:
        ds = dynamic(squares(calls).cache(tmp_path / "cache"), service)
        for _ in range(2):
            assert read(ds) == WANTED
    assert count(calls) <= 2 * N
    (entry,) = entries(str(tmp_path / "cache"))
    assert (entry.state, entry.elements) == ("complete", N)
    assert list(verify(str(tmp_path / "cache"))) == [(entry.key, "")]


def test_a_split_that_fails_is_tried_again_and_the_others_are_kept(tmp_path: Path, where: str | None) -> None:
    calls, good = tmp_path / "calls", str(tmp_path / "good")

    def picky(x: int) -> int:
        if x == 25 and not os.path.exists(good):
            raise ValueError("five")
        return x

    with dsnb.start(workers=1) as service:
        ds = dynamic(squares(calls).map(picky).cache(where), service)
        found: list[int] = []
        elements = iter(ds)
        with pytest.raises(ValueError, match="five"):
            found += (int(x) for x in elements)
        found += (int(x) for x in elements)
        assert len(found) == N - 1
        Path(good).touch()
        for _ in range(2):
            assert read(ds) == WANTED
        assert count(calls) == N + 1


def test_a_damaged_split_is_never_served_but_all_is_recorded_anew(tmp_path: Path) -> None:
    calls, where = tmp_path / "calls", tmp_path / "cache"
    with dsnb.start(workers=2) as service:
        ds = dynamic(squares(calls).cache(where), service)
        assert read(ds) == WANTED
        segment = next(where.rglob("*.seg"))
        data = bytearray(segment.read_bytes())
        data[20] ^= 1
        segment.write_bytes(data)
        # What a process has compared with its checksum it reads on from; another dataset looks for itself.
        ds = dynamic(squares(calls).cache(where), service)
        with pytest.warns(dsnb.errors.CacheWarning, match=segment.name):
            assert read(ds) == WANTED
        for _ in range(2):
            assert read(ds) == WANTED
    assert count(calls) <= 3 * N
    assert [problem for _, problem in verify(str(where))] == [""]
    assert entries(str(where))[0].state == "complete"


def test_what_mixes_splits_is_named_where_the_job_is_asked_for(tmp_path: Path, where: str | None) -> None:
    with dsnb.start(workers=1) as service:
        for mixed in (dsnb.Dataset.range(9).batch(2), dsnb.Dataset.range(9).shuffle(3, seed=1)):
            with pytest.raises(UnimplementedError, match=r"but (batch\(2\)|shuffle\(3\)) in front of it mixes them"):
                dynamic(mixed.map(lambda x: x).cache(where), service)
        assert len(list(dynamic(dsnb.Dataset.range(9).cache(where).batch(2), service))) == 5


@pytest.mark.slow
def test_memory_that_worker_processes_do_not_share_is_told_of_with_the_remedy(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with dsnb.start(workers=2, isolation="process") as service:
        ds = dynamic(squares(calls).cache(), service)
        with pytest.warns(dsnb.errors.CacheWarning, match=r"(?s)cache\(\) keeps.*DYNAMIC.*\.cache\('/data/cache'\)"):
            assert read(ds) == WANTED
        shared = dynamic(squares(calls).cache(tmp_path / "cache"), service)
        before = count(calls)
        for _ in range(2):
            assert read(shared) == WANTED
        assert count(calls) == before + N
