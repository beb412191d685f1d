"""How a pipeline comes to a service and back by its id; the numbers are lines of the original's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.client.trainer_cache import CrossTrainerCache
from dsnb.errors import DsnbWarning, InvalidArgumentError, NotFoundError, UnimplementedError
from tests.pipeline.driving import plain
from tests.support.cluster import Cluster
from tests.support.reading import numbers


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=1) as cluster:
        yield cluster


def read(cluster: Cluster, dataset_id: str, **options: Any) -> dsnb.Dataset:
    return dsnb.from_dataset_id("parallel_epochs", cluster.service, dataset_id, **options)


def test_line_47_a_registered_dataset_is_read_by_its_id(cluster: Cluster) -> None:
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10))
    assert numbers(read(cluster, dataset_id)) == list(range(10))


def test_line_49_structure_is_kept(cluster: Cluster) -> None:
    dataset = dsnb.Dataset.range(3).map(lambda x: {"a": (x, x + 1), "b": {"c": np.full(2, x)}})
    got = [plain(element) for element in read(cluster, dsnb.register_dataset(cluster.service, dataset))]
    assert got == [{"a": (x, x + 1), "b": {"c": [x, x]}} for x in range(3)]


def test_line_50_a_wrong_element_spec_is_refused(cluster: Cluster) -> None:
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10))
    wrong = dsnb.TensorSpec((), np.bool_)
    with pytest.raises(InvalidArgumentError, match=r"has elements .*int64.*, and `element_spec` is .*bool"):
        read(cluster, dataset_id, element_spec=wrong)
    assert numbers(read(cluster, dataset_id, element_spec=dsnb.TensorSpec((), np.int64))) == list(range(10))


def test_a_spec_that_is_no_spec_is_refused(cluster: Cluster) -> None:
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10))
    with pytest.raises(InvalidArgumentError, match=r"`element_spec` holds .*, not a TensorSpec"):
        read(cluster, dataset_id, element_spec=np.int64)


def test_line_51_an_id_that_was_not_registered_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(NotFoundError, match="Dataset id UnregisteredID not found"):
        read(cluster, "UnregisteredID")


def test_line_54_different_datasets_have_different_ids(cluster: Cluster) -> None:
    ids = {dsnb.register_dataset(cluster.service, dsnb.Dataset.range(count)) for count in (10, 20)}
    assert len(ids) == 2


def test_the_same_dataset_has_the_same_id_whoever_registers_it(cluster: Cluster) -> None:
    def make() -> dsnb.Dataset:
        return dsnb.Dataset.range(10).map(lambda x: x + 1)

    assert dsnb.register_dataset(cluster.service, make()) == dsnb.register_dataset(cluster.address, make())


def test_line_55_a_chosen_id_is_honoured(cluster: Cluster) -> None:
    assert dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10), dataset_id="mine") == "mine"
    assert numbers(read(cluster, "mine")) == list(range(10))


@pytest.mark.parametrize("wrong", ["", 7])
def test_an_id_is_a_string(cluster: Cluster, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`dataset_id` must (not be empty|be a string)"):
        dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10), dataset_id=wrong)


def test_line_57_one_id_and_one_job_are_one_pass(cluster: Cluster) -> None:
    for _ in range(2):
        dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10), dataset_id="mine")
    one, other = (read(cluster, "mine", job_name="job") for _ in range(2))
    assert numbers(one) == list(range(10))
    with pytest.warns(DsnbWarning, match="has already been read to its end"):
        assert numbers(other) == []


def test_line_59_one_id_has_one_structure(cluster: Cluster) -> None:
    dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10), dataset_id="mine")
    pairs = dsnb.Dataset.zip(dsnb.Dataset.range(10), dsnb.Dataset.range(10))
    with pytest.raises(InvalidArgumentError, match="Datasets with the same ID should have the same structure"):
        dsnb.register_dataset(cluster.service, pairs, dataset_id="mine")


def test_only_datasets_can_be_distributed(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`dataset` is list, not a Dataset"):
        dsnb.register_dataset(cluster.service, [1, 2, 3])  # type: ignore[arg-type]


def test_a_source_that_cannot_be_split_is_refused_where_it_is_distributed(cluster: Cluster) -> None:
    inner = dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", cluster.service))
    with pytest.raises(UnimplementedError, match="Cannot create split providers"):
        inner.apply(dsnb.distribute("distributed_epoch", cluster.service))


def test_finite_data_can_be_shared_through_the_cache_by_id_too(cluster: Cluster) -> None:
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(10))
    for trainer in "ab":
        shared = read(cluster, dataset_id, job_name="j", cross_trainer_cache=CrossTrainerCache(trainer))
        assert [int(x) for x in shared] == [int(x) for x in shared] == list(range(10))


def test_an_unknown_transfer_is_refused_before_anything_is_registered(cluster: Cluster) -> None:
    with pytest.raises(NotFoundError, match="'unknown' is not available"):
        dsnb.distribute("parallel_epochs", cluster.service, data_transfer_protocol="unknown")
    assert not cluster.dispatcher.debug_state()["datasets"]


def test_a_big_array_is_sent_once(cluster: Cluster) -> None:
    array = np.arange(300_000, dtype=np.int64)
    ids = {dsnb.register_dataset(cluster.service, dsnb.Dataset.from_tensor_slices(array).take(n)) for n in (3, 4)}
    assert len(ids) == 2
    blobs = cluster.dispatcher.debug_state()["blobs"]
    assert [nbytes for nbytes in blobs.values() if nbytes > 1_000_000] == [array.nbytes]
    assert numbers(read(cluster, ids.pop()))[:3] == [0, 1, 2]


def test_a_pipeline_that_cannot_be_recognised_warns_and_works(cluster: Cluster) -> None:
    generator = np.random.default_rng(1)
    dataset = dsnb.Dataset.range(3).map(lambda x: x + int(generator.integers(1)))
    with pytest.warns(DsnbWarning, match="cannot be recognised when it is registered again, because of"):
        dataset_id = dsnb.register_dataset(cluster.service, dataset)
    assert numbers(read(cluster, dataset_id)) == [0, 1, 2]


def test_what_describes_itself_differently_each_time_warns_and_works(cluster: Cluster) -> None:
    """As a tensor does whose pickle holds an address: a key that was made of it would be found by nobody."""
    states = iter(range(10**6))

    class Model:
        scale = 2

        def __getstate__(self) -> dict[str, int]:
            return {"storage": next(states)}

    model = Model()
    dataset = dsnb.Dataset.range(3).map(lambda x: x * model.scale)
    with pytest.warns(DsnbWarning, match=r"because of .*closure model \(it describes itself differently each time"):
        distributed = dataset.apply(dsnb.distribute("parallel_epochs", cluster.service))
    assert sorted(numbers(distributed)) == [0, 2, 4]
