"""`dsnb.start(work_dir=...)`: what a service keeps for the next one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import dsnb
from dsnb.errors import AlreadyExistsError, DataLossError, ResourceExhaustedError
from dsnb.storage.failpoints import When, failpoint_hook
from tests.support.cluster import Cluster
from tests.support.reading import numbers, run_in_threads

BIG = np.arange(400_000)


@pytest.mark.slow
def test_a_service_that_is_started_again_in_its_folder_knows_jobs_and_token(tmp_path: Path) -> None:
    with dsnb.start(workers=1, work_dir=tmp_path) as service:
        token = service.token
        registered = dsnb.register_dataset(service, dsnb.Dataset.range(4).map(lambda x: BIG[x]))
        numbers = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", service, job_name="train"))
        assert len(list(numbers)) == 10
    assert BIG.nbytes in [path.stat().st_size for path in (tmp_path / "blobs").iterdir()]
    with dsnb.start(workers=1, work_dir=tmp_path) as service:
        assert service.token == token
        again = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", service, job_name="train"))
        with pytest.warns(dsnb.errors.DsnbWarning, match="pass 1 of job 'train' has already been read to its end"):
            assert list(again) == []
        assert len(list(again)) == 10
        assert [int(x) for x in dsnb.from_dataset_id("parallel_epochs", service, registered)] == [0, 1, 2, 3]


def test_a_cell_that_is_run_again_finds_its_service_however_it_writes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with dsnb.start(workers=1, work_dir="state") as service:
        assert dsnb.start(workers=1, work_dir=tmp_path / "state").target == service.target
        assert service.status().service == "default"
        with dsnb.start(workers=1, work_dir="elsewhere"):
            assert service.stopped, "two services of one name"


@pytest.mark.slow
def test_a_dispatcher_that_is_started_again_with_a_list_for_the_first_time_uses_the_workers_it_knows(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"work_dir": tmp_path}
    with Cluster(2, dispatcher=settings) as cluster:
        data = dsnb.Dataset.range(20).apply(dsnb.distribute(dsnb.ShardingPolicy.DATA, cluster.service))
        assert sorted(numbers(data)) == list(range(20))
        settings["worker_addresses"] = ["localhost:%port%"] * 2
        cluster.restart_dispatcher()
        assert run_in_threads([lambda: sorted(numbers(data))]) == [list(range(20))]


def test_two_services_cannot_have_one_folder(tmp_path: Path) -> None:
    one = dsnb.start(workers=0, work_dir=tmp_path, name="one")
    with one, pytest.raises(AlreadyExistsError, match="another dispatcher uses the journal"):
        dsnb.start(workers=0, work_dir=tmp_path, name="two")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("damaged", ["array", "definition"])
def test_a_flipped_bit_of_a_registered_pipeline_is_an_error_until_it_is_registered_again(
    tmp_path: Path, damaged: str, isolation: Literal["thread", "process"]
) -> None:
    dataset = dsnb.Dataset.from_tensor_slices(BIG).take(3)
    with dsnb.start(workers=0, work_dir=tmp_path) as service:
        registered = dsnb.register_dataset(service, dataset)
    (file,) = (
        path for path in (tmp_path / "blobs").iterdir() if (path.stat().st_size == BIG.nbytes) == (damaged == "array")
    )
    data = bytearray(file.read_bytes())
    data[8 if damaged == "array" else -40] ^= 1  # the lowest bit of the second number; somewhere in a pickle
    file.write_bytes(data)
    with dsnb.start(workers=1, work_dir=tmp_path, isolation=isolation) as service:
        with pytest.raises(DataLossError, match=rf"{file.name} .*damaged") as refused:
            list(dsnb.from_dataset_id("parallel_epochs", service, registered))
        assert "register the dataset again" in refused.value.hint
        assert dsnb.register_dataset(service, dataset) == registered
        assert [int(x) for x in dsnb.from_dataset_id("parallel_epochs", service, registered)] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("passing", [1, 2])  # the definition, then the array
def test_a_registration_for_which_the_disk_is_full_is_an_error_and_leaves_no_file_and_the_next_one_works(
    tmp_path: Path, passing: int
) -> None:
    left = [passing]

    def full(name: str, when: When) -> None:
        if (name, when) == ("blob name", "before"):
            left[0] -= 1
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    dataset = dsnb.Dataset.from_tensor_slices(BIG).take(3)
    with dsnb.start(workers=1, work_dir=tmp_path) as service:
        with failpoint_hook(full), pytest.raises(ResourceExhaustedError, match="keeping a pipeline in") as refused:
            dsnb.register_dataset(service, dataset)
        assert "free some space" in refused.value.hint
        assert len(list((tmp_path / "blobs").iterdir())) == passing - 1
        registered = dsnb.register_dataset(service, dataset)
        assert [int(x) for x in dsnb.from_dataset_id("parallel_epochs", service, registered)] == [0, 1, 2]
