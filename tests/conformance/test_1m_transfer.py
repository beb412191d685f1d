"""Section 1M: how elements are handed over, and what happens where one way does not work."""

from __future__ import annotations

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, NotFoundError
from tests.conformance.conftest import MakeCluster
from tests.support.reading import first, numbers

ENDLESS = dsnb.Dataset.range(1 << 40)


def test_line_202_the_way_that_was_asked_for_is_used(cluster: MakeCluster) -> None:
    service = cluster(1).service

    def with_its_address(_: int) -> np.ndarray:
        image = np.zeros(100_000, np.int64)
        image[0] = image.ctypes.data
        return image

    images = dsnb.Dataset.range(4).map(with_its_address)
    for protocol, by_reference in (("local", True), ("grpc", False)):
        mode = dsnb.distribute("parallel_epochs", service, f"job over {protocol}", data_transfer_protocol=protocol)
        assert [image[0] == image.ctypes.data for image in images.apply(mode)] == [by_reference] * 4


def test_line_203_what_cannot_be_read_in_place_is_read_over_the_network(cluster: MakeCluster) -> None:
    one = cluster(0)
    one.add_worker(remote=True)
    assert numbers(dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", one.service))) == list(range(10))
    only = dsnb.distribute("parallel_epochs", one.service, data_transfer_protocol="local")
    with pytest.raises(FailedPreconditionError, match="the transfer 'local' is not available"):
        list(dsnb.Dataset.range(10).apply(only))


@pytest.mark.filterwarnings("ignore::dsnb.errors.DataLossWarning")
def test_line_204_a_way_that_breaks_gives_way_to_another(cluster: MakeCluster) -> None:
    one = cluster(1)
    port = int(one.workers[0].address.rpartition(":")[2])
    with iter(ENDLESS.apply(dsnb.distribute("parallel_epochs", one.service))) as elements:
        first(10, elements)
        one.workers.pop().stop()
        one.add_worker(remote=True, port=port)
        assert 0 in map(int, elements), "the worker that took its place is not read"


@pytest.mark.parametrize("protocol", ["unknown", "", "GRPC"])
def test_line_205_an_unknown_way(cluster: MakeCluster, protocol: str) -> None:
    with pytest.raises(NotFoundError, match="not available"):
        dsnb.distribute("parallel_epochs", "127.0.0.1:9", data_transfer_protocol=protocol)
    service = cluster(0).service
    dataset_id = dsnb.register_dataset(service, dsnb.Dataset.range(1))
    with pytest.raises(NotFoundError, match="not available"):
        dsnb.from_dataset_id("parallel_epochs", service, dataset_id, data_transfer_protocol=protocol)
