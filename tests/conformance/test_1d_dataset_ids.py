"""Section 1D: registering a dataset, and reading it by its id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import DsnbWarning, InvalidArgumentError, NotFoundError
from tests.conformance.conftest import MakeCluster
from tests.support.reading import numbers


def read(service: Any, dataset_id: str, transfer: str | None = None, **options: Any) -> dsnb.Dataset:
    return dsnb.from_dataset_id("parallel_epochs", service, dataset_id, data_transfer_protocol=transfer, **options)


def test_line_047_from_dataset_id(cluster: MakeCluster, transfer: str) -> None:
    service, ten = cluster(1).service, dsnb.Dataset.range(10)
    dataset_id = dsnb.register_dataset(service, ten)
    assert numbers(read(service, dataset_id, transfer, element_spec=ten.element_spec)) == list(range(10))


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
    with pytest.warns(DsnbWarning, match="pass 0 of job 'shared' was read to its end already"):
        assert numbers(other) == []


def test_line_058_different_ids(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    ten = dsnb.Dataset.range(10)
    ids = [dsnb.register_dataset(service, ten, dataset_id=name) for name in ("one", "another")]
    assert ids == ["one", "another"]
    for dataset_id in ids:
        assert numbers(read(service, dataset_id, transfer, job_name="shared")) == list(range(10))
    for dataset_id in ids:
        assert numbers(read(service, dataset_id, transfer, job_name=f"job of {dataset_id}")) == list(range(10))


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


def test_a_cell_that_was_changed_and_run_again_means_what_it_says_now(cluster: MakeCluster) -> None:
    """Not of the original's lines: there the id goes on meaning the first pipeline, and nothing tells."""
    service = cluster(1).service
    for factor in (2, 3):
        dsnb.register_dataset(service, dsnb.Dataset.range(3).map(lambda x, by=factor: by * x), dataset_id="mine")
        assert numbers(read(service, "mine", job_name="job")) == [0, factor, 2 * factor]
    with (
        iter(read(service, "mine", job_name="another")).start(),
        pytest.raises(InvalidArgumentError, match="has another pipeline"),
    ):
        dsnb.register_dataset(service, dsnb.Dataset.range(9), dataset_id="mine")
