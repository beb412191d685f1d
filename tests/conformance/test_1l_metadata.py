"""Section 1L: what a reader learns of a dataset without reading it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dsnb.errors import NotFoundError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.messages import DatasetInfo, DatasetRequest
from dsnb.wire.methods import GET_DATASET
from tests.conformance.conftest import MakeCluster
from tests.support.cluster import Cluster
from tests.support.reading import numbers

POLICIES = {policy.name: policy for policy in dsnb.ShardingPolicy}
Distributed = Callable[[dsnb.Dataset, Any, Any], dsnb.Dataset]


def hinted(dataset: dsnb.Dataset, mode: str) -> dsnb.Dataset:
    """The dataset as the mode wants it."""
    return dataset.shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT) if mode == "HINT" else dataset


def distributed(dataset: dsnb.Dataset, mode: str, service: Any) -> dsnb.Dataset:
    return hinted(dataset, mode).apply(dsnb.distribute(POLICIES[mode], service))


def by_id(dataset: dsnb.Dataset, mode: str, service: Any) -> dsnb.Dataset:
    dataset_id = dsnb.register_dataset(service, hinted(dataset, mode))
    return dsnb.from_dataset_id(POLICIES[mode], service, dataset_id)


ENDLESS = dict.fromkeys(["OFF", "DYNAMIC", "DATA"], INFINITE_CARDINALITY) | dict.fromkeys(
    ["FILE_OR_DATA", "HINT"], UNKNOWN_CARDINALITY
)
EMPTY = dict.fromkeys(["OFF", "DYNAMIC", "DATA", "FILE_OR_DATA"], 0) | {"HINT": UNKNOWN_CARDINALITY}
FINITE = dict.fromkeys(ENDLESS, UNKNOWN_CARDINALITY)


def cardinalities(dataset: dsnb.Dataset, service: Any, way: Distributed) -> dict[str, int]:
    return {mode: way(dataset, mode, service).cardinality() for mode in ENDLESS}


def test_line_192_infinite_source(cluster: MakeCluster) -> None:
    assert cardinalities(dsnb.Dataset.range(10).repeat(), cluster(1).service, distributed) == ENDLESS


def test_line_193_empty_source(cluster: MakeCluster) -> None:
    assert cardinalities(dsnb.Dataset.range(0), cluster(1).service, distributed) == EMPTY


def test_line_194_finite_source(cluster: MakeCluster) -> None:
    service = cluster(2).service
    # Workers that share the splits of a range make together what one would.
    assert cardinalities(dsnb.Dataset.range(10), service, distributed) == FINITE | {"DYNAMIC": 10}
    assert len(list(distributed(dsnb.Dataset.range(10), "OFF", service))) == 20


@pytest.mark.parametrize("dataset,expected", [
    pytest.param(dsnb.Dataset.range(10).repeat(), ENDLESS, id="infinite"),
    pytest.param(dsnb.Dataset.range(0), EMPTY, id="empty"),
    pytest.param(dsnb.Dataset.range(10), FINITE, id="finite"),
])  # fmt: skip
def test_line_195_by_dataset_id(cluster: MakeCluster, dataset: dsnb.Dataset, expected: dict[str, int]) -> None:
    assert cardinalities(dataset, cluster(1).service, by_id) == expected


def nested() -> dsnb.Dataset:
    rows = {"x": np.zeros((6, 2), np.float32), "names": ["a", "b", "c", "d", "e", "f"]}
    return dsnb.Dataset.zip(dsnb.Dataset.from_tensor_slices(rows), dsnb.Dataset.range(6))


def test_line_196_the_element_spec_is_fetched(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    dataset_id = dsnb.register_dataset(service, nested())
    fetched = dsnb.from_dataset_id("parallel_epochs", service, dataset_id, data_transfer_protocol=transfer)
    assert fetched.element_spec == nested().element_spec
    features, number = next(iter(fetched))
    assert (features["x"].tolist(), features["names"], int(number)) == ([0.0, 0.0], "a", 0)


def test_line_196_an_unknown_element_spec_stays_unknown_until_it_is_read(cluster: MakeCluster) -> None:
    service = cluster(1).service
    dataset_id = dsnb.register_dataset(service, dsnb.Dataset.range(3).map(lambda x: {"twice": 2 * x}))
    fetched = dsnb.from_dataset_id("parallel_epochs", service, dataset_id)
    assert fetched.element_spec is None
    assert [int(element["twice"]) for element in fetched] == [0, 2, 4]


def upper(text: str) -> str:
    return text.upper()


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "AUTO"])
def test_line_199_the_compression_is_fetched(cluster: MakeCluster, transfer: str, compression: str | None) -> None:
    service = cluster(1).service
    words = dsnb.Dataset.from_tensor_slices(["hello", "world"])
    dataset_id = dsnb.register_dataset(service, words, compression=compression)
    fetched = dsnb.from_dataset_id(
        "parallel_epochs", service, dataset_id, element_spec=words.element_spec, data_transfer_protocol=transfer
    )
    assert list(fetched.map(upper)) == ["HELLO", "WORLD"]


@pytest.mark.parametrize("compression", [None, "AUTO"])
def test_line_200_both_are_fetched(cluster: MakeCluster, compression: str | None) -> None:
    service = cluster(1).service
    dataset_id = dsnb.register_dataset(service, dsnb.Dataset.range(10).repeat(), compression=compression)

    def trainer(name: str, **options: Any) -> dsnb.Dataset:
        cache = dsnb.CrossTrainerCache(name)
        return dsnb.from_dataset_id(
            "parallel_epochs", service, dataset_id, job_name="job", cross_trainer_cache=cache, **options
        )

    assert trainer("one").element_spec == dsnb.Dataset.range(10).element_spec
    # A second trainer that distributes the same pipeline with the same compression is of the same job.
    again = dsnb.Dataset.range(10).repeat()
    distribute = dsnb.distribute(
        "parallel_epochs", service, "job", compression=compression, cross_trainer_cache=dsnb.CrossTrainerCache("two")
    )
    with iter(trainer("one")) as one, iter(again.apply(distribute)) as two:
        assert numbers(next(one) for _ in range(10)) == numbers(next(two) for _ in range(10)) == list(range(10))


@pytest.fixture
def service(cluster: MakeCluster) -> Cluster:
    return cluster(1)


def test_line_201_metadata_come_back_as_they_went(service: Cluster) -> None:
    channel = open_channel(service.address, service.dispatcher.token)
    try:
        for dataset, cardinality in (
            (nested(), 6),
            (dsnb.Dataset.range(0), 0),
            (dsnb.Dataset.range(3).repeat(), INFINITE_CARDINALITY),
            (dsnb.Dataset.range(3).filter(bool), UNKNOWN_CARDINALITY),
        ):
            dataset_id = dsnb.register_dataset(service.service, dataset, compression=None)
            reply, *_ = channel.fetch(GET_DATASET, DatasetRequest(dataset_id=dataset_id))
            info = reply.info or DatasetInfo()
            assert (reply.dataset_id, info.cardinality, info.compression) == (dataset_id, cardinality, "NONE")
        _unknown(channel)
    finally:
        channel.close()


def _unknown(channel: Channel) -> None:
    with pytest.raises(NotFoundError, match="Dataset id not-found not found"):
        channel.fetch(GET_DATASET, DatasetRequest(dataset_id="not-found"))
