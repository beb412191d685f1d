"""Section 1D: registering a dataset, and reading it by its id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import DsnbWarning, FailedPreconditionError, InvalidArgumentError, NotFoundError
from tests.conformance.conftest import MakeCluster
from tests.support.reading import numbers, read_alternately


def read(service: Any, dataset_id: str, transfer: str | None = None, **options: Any) -> dsnb.Dataset:
    return dsnb.from_dataset_id("parallel_epochs", service, dataset_id, data_transfer_protocol=transfer, **options)


def test_line_047_from_dataset_id(cluster: MakeCluster, transfer: str) -> None:
    service, ten = cluster(1).service, dsnb.Dataset.range(10)
    dataset_id = dsnb.register_dataset(service, ten)
    assert numbers(read(service, dataset_id, transfer, element_spec=ten.element_spec)) == list(range(10))


@pytest.mark.slow
def test_line_049_nested_components(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    ten = dsnb.Dataset.range(10)
    dataset = dsnb.Dataset.zip({"a": (ten, ten), "b": ten})
    dataset_id = dsnb.register_dataset(service, dataset)
    fetched = read(service, dataset_id, transfer, element_spec=dataset.element_spec)
    assert list(fetched) == [{"a": (x, x), "b": x} for x in range(10)]


WRONG: dict[str, Any] = {
    "another dtype": dsnb.TensorSpec((), np.float32),
    "another rank": dsnb.TensorSpec((1,), np.int64),
    "another structure": (dsnb.TensorSpec((), np.int64),),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_line_050_wrong_element_spec(cluster: MakeCluster, wrong: str) -> None:
    service = cluster(1).service
    dataset_id = dsnb.register_dataset(service, dsnb.Dataset.range(10))
    with pytest.raises(InvalidArgumentError, match=f"the dataset '{dataset_id}' has elements") as error:
        read(service, dataset_id, element_spec=WRONG[wrong])
    assert "leave element_spec out" in error.value.hint


def test_line_051_not_registered(cluster: MakeCluster) -> None:
    with pytest.raises(NotFoundError, match="Dataset id UnregisteredID not found") as error:
        read(cluster(1).service, "UnregisteredID", element_spec=dsnb.TensorSpec((), np.int64))
    assert "ids belong to one service" in error.value.hint


@pytest.mark.parametrize("kind", [str, np.str_])
def test_line_052_ids_of_any_kind_of_text(cluster: MakeCluster, kind: type[str]) -> None:
    service = cluster(1).service
    dsnb.register_dataset(service, dsnb.Dataset.range(10), dataset_id=kind("numbers"))
    assert numbers(read(service, kind("numbers"))) == list(range(10))


def test_line_053_the_id_is_plain_text(cluster: MakeCluster) -> None:
    service = cluster(1).service
    dataset_id = dsnb.register_dataset(service, dsnb.Dataset.range(10))
    assert type(dataset_id) is str
    assert numbers(read(service, str(dataset_id))) == list(range(10))


def test_line_054_different_datasets(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    ids = [dsnb.register_dataset(service, dsnb.Dataset.range(length)) for length in (10, 20)]
    assert len(set(ids)) == 2
    assert [numbers(read(service, one, transfer)) for one in ids] == [list(range(10)), list(range(20))]


def test_line_055_an_id_of_the_user_s(cluster: MakeCluster) -> None:
    service = cluster(1).service
    assert dsnb.register_dataset(service, dsnb.Dataset.range(10), dataset_id="dataset_id") == "dataset_id"
    assert numbers(read(service, "dataset_id")) == list(range(10))


def test_line_056_an_id_is_enough_for_another_handle(cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cluster(1)
    dsnb.register_dataset(one.service, dsnb.Dataset.range(10), dataset_id="dataset_id")
    monkeypatch.setenv("DSNB_TOKEN", one.dispatcher.token)
    for handle in (one.dispatcher.target, one.address, ("grpc", one.address)):
        assert numbers(read(handle, "dataset_id")) == list(range(10))


def test_line_057_same_id_and_job(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    ids = [dsnb.register_dataset(service, dsnb.Dataset.range(10), dataset_id="dataset_id") for _ in range(2)]
    assert ids == ["dataset_id", "dataset_id"]
    one, other = (read(service, name, transfer, job_name="shared") for name in ids)
    assert numbers(one) == list(range(10))
    with pytest.warns(DsnbWarning, match="pass 1 of job 'dataset_id/shared' has already been read to its end"):
        assert numbers(other) == []


def test_line_058_different_ids(cluster: MakeCluster, transfer: str) -> None:
    """A job is one of its dataset id's: the same name under two ids is two jobs, which know nothing of each other."""
    one = cluster(1)
    ten = dsnb.Dataset.range(10)
    ids = [dsnb.register_dataset(one.service, ten, dataset_id=name) for name in ("one", "another")]
    assert ids == ["one", "another"]
    readers = [read(one.service, dataset_id, transfer, job_name="shared") for dataset_id in ids]
    readers.append(ten.apply(dsnb.distribute("parallel_epochs", one.service, job_name="shared")))
    for _ in range(2):
        assert [numbers(got) for got in read_alternately([*map(iter, readers)])] == [list(range(10))] * 3
    assert [job.name for job in one.status().jobs] == ["one/shared", "another/shared", "shared"]
    assert {job.iteration for job in one.status().jobs} == {1}


def test_line_058_without_an_id_the_same_pipeline_is_found(cluster: MakeCluster) -> None:
    service = cluster(1).service
    found = dsnb.register_dataset(service, dsnb.Dataset.range(10).map(lambda x: x + 1))
    assert dsnb.register_dataset(service, dsnb.Dataset.range(10).map(lambda x: x + 1)) == found
    assert dsnb.register_dataset(service, dsnb.Dataset.range(10).map(lambda x: x + 2)) != found


def test_line_059_one_id_has_one_structure(cluster: MakeCluster) -> None:
    service = cluster(1).service
    ten = dsnb.Dataset.range(10)
    dsnb.register_dataset(service, ten, dataset_id="dataset_id")
    for other in (dsnb.Dataset.zip((ten, ten)), ten.batch(2), dsnb.Dataset.from_tensor_slices(["text"])):
        with pytest.raises(InvalidArgumentError, match="Datasets with the same ID should have the same structure"):
            dsnb.register_dataset(service, other, dataset_id="dataset_id")
    assert numbers(read(service, "dataset_id")) == list(range(10))


def test_line_059_an_id_keeps_the_pipeline_that_it_was_first_given(cluster: MakeCluster) -> None:
    one = cluster(1)

    def times(factor: int) -> dsnb.Dataset:
        return dsnb.Dataset.range(3).map(lambda x: factor * x)

    dsnb.register_dataset(one.service, times(2), dataset_id="mine")
    data = read(one.service, "mine", job_name="job")
    assert numbers(data) == [0, 2, 4]
    assert dsnb.register_dataset(one.service, times(2), dataset_id="mine") == "mine"
    remedy = r"svc\.forget\(dataset_id='mine'\)"
    with pytest.warns(
        DsnbWarning, match=rf"belongs to another pipeline and stays with it: .*inside .*<lambda>.* differs.*{remedy}"
    ) as told:
        assert dsnb.register_dataset(one.service, times(3), dataset_id="mine") == "mine"
    assert told[0].filename == __file__
    with pytest.warns(DsnbWarning, match=r"the first operation that differs is range\(9\), before it was range\(3\)"):
        assert dsnb.register_dataset(one.service, dsnb.Dataset.range(9), dataset_id="mine") == "mine"
    assert numbers(data) == [0, 2, 4], "a job between two epochs goes on with its own data"
    assert numbers(read(one.service, "mine", job_name="another")) == [0, 2, 4]


def test_a_cell_that_is_edited_and_run_again_forgets_the_id_first(cluster: MakeCluster) -> None:
    service = cluster(1).service
    dsnb.register_dataset(service, dsnb.Dataset.range(3), dataset_id="mine")
    with iter(read(service, "mine", job_name="job")) as elements:
        next(elements)
        with pytest.raises(FailedPreconditionError, match="the job 'mine/job' has 1 client"):
            service.forget(dataset_id="mine")
    service.wait_until(lambda status: not status.job("job").clients)
    service.forget(dataset_id="mine")
    with pytest.raises(NotFoundError, match="Dataset id mine not found"):
        read(service, "mine")
    dsnb.register_dataset(service, dsnb.Dataset.range(9), dataset_id="mine")
    assert numbers(read(service, "mine", job_name="job")) == list(range(9))


def test_controls_find_a_job_by_its_name_within_its_id_while_it_is_the_only_one(cluster: MakeCluster) -> None:
    one = cluster(1)
    for name in ("one", "another"):
        dsnb.register_dataset(one.service, dsnb.Dataset.range(3), dataset_id=name)
    elements = iter(read(one.service, "one", job_name="job")).start()
    one.service.pause("job")
    assert one.job("job").state == one.job("one/job").state == "paused"
    one.service.resume("one/job")
    assert numbers(elements) == [0, 1, 2]
    numbers(read(one.service, "another", job_name="job"))
    assert one.status().job("job") is None
    with pytest.raises(NotFoundError, match="there is no job 'job'") as error:
        one.service.forget("job")
    assert "another/job, one/job" in error.value.hint
    one.service.forget("one/job")
    one.service.forget("job")
    assert one.status().jobs == ()


@pytest.mark.parametrize("names", [{}, {"job_name": "job", "dataset_id": "mine"}], ids=["neither", "both"])
def test_one_thing_is_forgotten_at_a_time(cluster: MakeCluster, names: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="needs a job_name or a dataset_id, and not both"):
        cluster(0).service.forget(**names)
