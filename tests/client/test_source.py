from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator

import cloudpickle
import pytest

import dsnb
from dsnb.client.source import FromService
from dsnb.client.trainer_cache import CrossTrainerCache
from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.errors import NotFoundError, UnimplementedError
from dsnb.wire.channel import open_channels
from tests.support.cluster import Cluster
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=1) as cluster:
        yield cluster


def distributed(
    cluster: Cluster, dataset: dsnb.Dataset, mode: str = "parallel_epochs", **options: object
) -> dsnb.Dataset:
    return dataset.apply(dsnb.distribute(mode, cluster.service, **options))  # type: ignore[arg-type]


def source_of(dataset: dsnb.Dataset) -> FromService:
    assert isinstance(dataset.operation, FromService)
    return dataset.operation


def test_each_loop_is_the_jobs_next_pass(cluster: Cluster) -> None:
    dataset = distributed(cluster, dsnb.Dataset.range(3), job_name="j")
    assert [numbers(dataset) for _ in range(3)] == [[0, 1, 2]] * 3
    assert cluster.job("j").iteration == 2


@pytest.mark.slow
def test_a_dataset_that_is_read_again_keeps_its_connections_from_pass_to_pass(cluster: Cluster) -> None:
    dataset = distributed(cluster, dsnb.Dataset.range(3), data_transfer_protocol="grpc")

    def open_to() -> set[str]:
        return {channel.address for channel in open_channels()}

    numbers(dataset)
    wait_for(lambda: open_to() == {cluster.address}, what="the worker's own connection alone to be left")
    numbers(dataset)
    used = open_channels()
    assert {channel.address for channel in used} == {cluster.address, cluster.workers[0].address}
    numbers(dataset)
    assert open_channels() == used
    del dataset
    gc.collect()
    wait_for(lambda: open_to() == {cluster.address}, what="the worker's own connection alone to be left")


def test_two_datasets_of_one_job_count_their_own_passes(cluster: Cluster) -> None:
    one, other = (distributed(cluster, dsnb.Dataset.range(3), job_name="j") for _ in range(2))
    assert numbers(one) == [0, 1, 2]
    with pytest.warns(dsnb.errors.DsnbWarning, match="pass 1 .* has already been read to its end"):
        assert numbers(other) == []
    assert numbers(other) == [0, 1, 2]


def test_a_pickled_copy_has_no_token_and_counts_its_own_passes(cluster: Cluster) -> None:
    dataset = distributed(cluster, dsnb.Dataset.range(3), job_name="j")
    numbers(dataset)
    data = cloudpickle.dumps(dataset)
    assert cluster.dispatcher.token.encode() not in data
    copy = pickle.loads(data)
    assert source_of(copy).passes is not source_of(dataset).passes
    with pytest.warns(dsnb.errors.DsnbWarning, match="pass 1"):
        assert numbers(copy) == []


def test_a_service_that_forgot_the_dataset_is_given_it_again(cluster: Cluster) -> None:
    dataset = distributed(cluster, dsnb.Dataset.range(3))
    assert numbers(dataset) == [0, 1, 2]
    wait_for(lambda: cluster.dispatcher.idle, what="the reader to leave")
    cluster.service.forget(dataset_id=source_of(dataset).dataset_id)
    assert not cluster.dispatcher.debug_state()["datasets"]
    assert numbers(dataset) == [0, 1, 2]


def test_a_dataset_that_only_its_id_is_known_of_cannot_be_given_again(cluster: Cluster) -> None:
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(3))
    dataset = dsnb.from_dataset_id("parallel_epochs", cluster.service, dataset_id)
    cluster.service.forget(dataset_id=dataset_id)
    with pytest.raises(NotFoundError, match=f"Dataset id {dataset_id} not found"):
        iter(dataset).start()


def test_a_shared_cache_has_one_pass_without_end(cluster: Cluster) -> None:
    dataset = distributed(
        cluster, dsnb.Dataset.range(3).repeat(), job_name="j", cross_trainer_cache=CrossTrainerCache("a")
    )
    for _ in range(3):
        with iter(dataset) as elements:
            first(3, elements)
    assert cluster.job("j").iteration == 0


@pytest.mark.parametrize(
    "dataset,expected",
    [
        (dsnb.Dataset.range(5), dsnb.UNKNOWN_CARDINALITY),
        (dsnb.Dataset.range(0), 0),
        (dsnb.Dataset.range(5).repeat(), dsnb.INFINITE_CARDINALITY),
    ],
    ids=["finite", "empty", "endless"],
)
def test_the_length_depends_on_the_workers_unless_it_is_none_or_endless(
    cluster: Cluster, dataset: dsnb.Dataset, expected: int
) -> None:
    assert distributed(cluster, dataset).cardinality() == expected


def test_what_is_distributed_cannot_be_split_once_more(cluster: Cluster) -> None:
    dataset = distributed(cluster, dsnb.Dataset.range(5))
    with pytest.raises(UnimplementedError, match="Cannot create split providers for dataset of type DataServiceData"):
        distributed(cluster, dataset, "distributed_epoch")


def test_the_source_is_named_after_its_job(cluster: Cluster) -> None:
    assert source_of(distributed(cluster, dsnb.Dataset.range(5))).name == "from the service"
    named = distributed(cluster, dsnb.Dataset.range(5), job_name="train")
    assert source_of(named).name == "from the service (job 'train')"


def test_a_distributed_dataset_is_known_by_its_pipeline_and_not_by_where_it_is_read(cluster: Cluster) -> None:
    def digest(dataset: dsnb.Dataset) -> str:
        return fingerprint(dataset).digest

    first = distributed(cluster, dsnb.Dataset.range(5).map(lambda x: x + 1))
    with Cluster(workers=1) as other:
        same = distributed(other, dsnb.Dataset.range(5).map(lambda x: x + 1))
        assert digest(first) == digest(same)
        assert digest(first) != digest(distributed(other, dsnb.Dataset.range(5).map(lambda x: x + 2)))
        assert digest(first) != digest(distributed(other, dsnb.Dataset.range(5).map(lambda x: x + 1), job_name="j"))
    copy = pickle.loads(cloudpickle.dumps(first))
    assert source_of(copy).pipeline == fingerprint(source_of(first).pipeline).digest


def test_a_dataset_by_its_id_is_known_by_what_is_registered_under_it() -> None:
    found = []
    for size in (5, 6, 5):
        with Cluster(workers=1) as cluster:
            dsnb.register_dataset(cluster.service, dsnb.Dataset.range(size), dataset_id="numbers")
            dataset = dsnb.from_dataset_id("parallel_epochs", cluster.service, "numbers")
            found.append(fingerprint(dataset).digest)
    assert found[0] == found[2] != found[1]
