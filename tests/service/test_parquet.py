"""Parquet files through a service: each row once with any workers, whatever leaves and wherever reading resumes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from dsnb.testing import assert_resumable
from tests.support.cluster import Cluster
from tests.support.file_server import FileServer
from tests.support.parquet import numbers_of, write_numbers
from tests.support.requires import require_module
from tests.support.s3 import BUCKET, S3Server

ROWS = 3 * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parquet")
    write_numbers(made, 3, 60, rows_per_group=7)
    return made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=3) as cluster:
        yield cluster


def rows(folder: Path, cluster: Cluster, batch_size: int | None = 3) -> dsnb.Dataset:
    distributed = dsnb.distribute("distributed_epoch", cluster.service)
    return dsnb.ParquetDataset(folder, batch_size=batch_size).apply(distributed)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_three_workers_read_each_row_once(folder: Path, cluster: Cluster, batch_size: int | None) -> None:
    ds = rows(folder, cluster, batch_size)
    assert ds.element_spec == dsnb.ParquetDataset(folder, batch_size=batch_size).element_spec
    assert Counter(numbers_of(list(ds))) == Counter(range(ROWS))


@pytest.mark.parametrize("how", ["stop", "remove"])
def test_rows_are_read_once_when_workers_leave(folder: Path, cluster: Cluster, how: str) -> None:
    got = []
    with iter(rows(folder, cluster)) as elements:
        for worker in cluster.workers[1:]:
            got += list(itertools.islice(elements, 10))
            worker.stop() if how == "stop" else cluster.service.remove(worker.name)
        got += list(elements)
    assert Counter(numbers_of(got)) == Counter(range(ROWS))


def test_reading_goes_on_on_a_new_service(folder: Path, cluster: Cluster) -> None:
    with iter(rows(folder, cluster)) as elements:
        got = list(itertools.islice(elements, 20))
        state = json.loads(json.dumps(elements.state_dict()))
    with Cluster(workers=2) as other, iter(rows(folder, other)) as elements:
        elements.load_state_dict(state)
        got += list(elements)
    assert Counter(numbers_of(got)) == Counter(range(ROWS))


@pytest.mark.slow
def test_every_batch_is_a_place_to_resume(folder: Path, cluster: Cluster) -> None:
    ds = dsnb.ParquetDataset(folder / "000.parquet", batch_size=3)
    assert_resumable(ds, service=cluster.service, processing_mode="distributed_epoch", positions=range(0, 28, 3))


def test_row_groups_of_a_slow_store_are_read_once(folder: Path, cluster: Cluster) -> None:
    require_module("aiohttp")
    with FileServer(folder, delay_s=0.005) as files:
        urls = [f"{files.url}/{number:03}.parquet" for number in range(3)]
        distributed = dsnb.distribute("distributed_epoch", cluster.service)
        with iter(dsnb.ParquetDataset(urls, batch_size=3).apply(distributed)) as elements:
            got = list(itertools.islice(elements, 10))
            cluster.service.remove(cluster.workers[0].name)
            got += list(elements)
    assert Counter(numbers_of(got)) == Counter(range(ROWS))


@pytest.mark.slow
def test_worker_processes_read_parquet_from_a_store_of_objects(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as store:
        with store.client() as client:
            for file in folder.iterdir():
                client.upload_file(str(file), BUCKET, f"train/{file.name}")
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)
        code = (
            "import dsnb, sys; from tests.support.parquet import numbers_of\n"
            "if __name__ == '__main__':\n"
            "    with dsnb.start(workers=2, isolation='process') as service:\n"
            f"        ds = dsnb.ParquetDataset('s3://{BUCKET}/train/', batch_size=4)\n"
            "        print(sorted(numbers_of(list(ds.apply(dsnb.distribute('distributed_epoch', service))))))\n"
        )
        from tests.support.processes import PythonProcess

        with PythonProcess(["-c", code]) as process:
            assert process.popen.wait(90) == 0, process.describe()
            assert json.loads(process.stdout.splitlines()[-1]) == list(range(ROWS))
