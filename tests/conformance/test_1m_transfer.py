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
    rows = dsnb.Dataset.from_tensor_slices(np.arange(400_000, dtype=np.uint8).reshape(4, 100_000)).repeat()

    def two_trainers(protocol: str) -> list[np.ndarray]:
        trainers = [
            iter(
                rows.apply(
                    dsnb.distribute(
                        "parallel_epochs",
                        service,
                        f"job over {protocol}",
                        cross_trainer_cache=dsnb.CrossTrainerCache(name),
                        data_transfer_protocol=protocol,
                    )
                )
            )
            for name in ("one", "other")
        ]
        found = [next(trainer) for trainer in trainers]
        for trainer in trainers:
            trainer.close()
        return found

    for protocol, shared in (("local", True), ("grpc", False)):
        mine, its = two_trainers(protocol)
        assert np.array_equal(mine, its)
        assert np.shares_memory(mine, its) is shared


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
