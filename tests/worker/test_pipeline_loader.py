"""How a pipeline and its big arrays come to a worker: in place, or in pieces over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import xxhash
from msgspec.structs import replace

import dsnb
from dsnb.errors import CancelledError, DataLossError, NotFoundError
from dsnb.transfer import local
from dsnb.wire.blobs import blob_digest, blob_pieces
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.messages import TaskOrder
from dsnb.wire.methods import PUT_BLOB
from dsnb.worker.pipeline_loader import DefinitionCache, differing_libraries, fetch, stage_builder
from dsnb.worker.retry_policy import RetryPolicy
from tests.pipeline.driving import drain, no_room, plain
from tests.support.cluster import Cluster

PATIENCE = RetryPolicy(
    seconds=1.0, on_overdue=lambda error: pytest.fail(str(error)), given_up=lambda: False, connected=lambda: False
)
ARRAY = np.arange(400_000, dtype=np.int64).reshape(-1, 4)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=0) as cluster:
        yield cluster


@pytest.fixture
def channel(cluster: Cluster) -> Iterator[Channel]:
    with closing(open_channel(cluster.address, cluster.dispatcher.token)) as channel:
        yield channel


@pytest.fixture(params=["in place", "in pieces"])
def way(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """A worker of the dispatcher's own process reads blobs in place; one elsewhere does not find them there."""
    if request.param == "in pieces":
        local.withdraw_blobs(cluster.address)
    return str(request.param)


def order_of(cluster: Cluster, dataset: dsnb.Dataset, iteration: int = 0) -> TaskOrder:
    """A task over a dataset, as a dispatcher orders it."""
    dataset_id = dsnb.register_dataset(cluster.service, dataset)
    definition = cluster.dispatcher.debug_state()["datasets"][dataset_id]
    return TaskOrder(task_id="t", dataset_id=dataset_id, definition=definition, iteration=iteration)


def test_a_registered_pipeline_is_built_and_gives_its_elements(cluster: Cluster, channel: Channel) -> None:
    dataset = dsnb.Dataset.range(5).map(lambda x: x * 10)
    order = order_of(cluster, dataset)
    stage = stage_builder(channel, order, None, PATIENCE, DefinitionCache())(no_room)
    try:
        assert plain(drain(stage)) == [0, 10, 20, 30, 40]
    finally:
        stage.close()


def test_a_big_array_comes_whole(cluster: Cluster, channel: Channel, way: str) -> None:
    dataset = dsnb.Dataset.from_tensor_slices(ARRAY)
    order = order_of(cluster, dataset)
    stage = stage_builder(channel, order, None, PATIENCE, DefinitionCache())(no_room)
    try:
        assert np.array_equal(np.array(drain(stage, (20_000,) * 6)), ARRAY)
    finally:
        stage.close()


def test_a_blob_cannot_be_written_by_whoever_fetched_it(cluster: Cluster, channel: Channel, way: str) -> None:
    digest = blob_digest(b"some bytes")
    channel.upload(PUT_BLOB, lambda: blob_pieces(digest, b"some bytes"))
    data = fetch(channel, digest)
    assert bytes(data) == b"some bytes"
    with pytest.raises(TypeError, match="read-only"):
        data[0] = 1


def test_a_blob_that_is_not_there_is_an_error(channel: Channel, way: str) -> None:
    with pytest.raises(NotFoundError, match="does not hold the blob nowhere"):
        fetch(channel, "nowhere")


class Damaging:
    """A connection on which one byte of each blob and definition is not the one that was sent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.address = channel.address

    def fetch(self, method: Any, request: Any, **more: Any) -> Any:
        known, *pieces = self._channel.fetch(method, request, **more)
        return [known, *(replace(piece, definition=flipped(piece.definition)) for piece in pieces)]

    def transfer(self, method: Any, request: Any) -> Iterator[Any]:
        return (replace(piece, data=flipped(piece.data)) for piece in self._channel.transfer(method, request))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1]) if data else data  # as it is in a first message


def test_a_blob_or_definition_that_arrives_damaged_is_an_error_and_no_pipeline(
    cluster: Cluster, channel: Channel
) -> None:
    local.withdraw_blobs(cluster.address)
    dataset = dsnb.Dataset.from_tensor_slices(ARRAY)
    order = order_of(cluster, dataset)
    known = DefinitionCache()
    damaging: Any = Damaging(channel)
    with pytest.raises(DataLossError, match="arrived damaged"):
        stage_builder(damaging, order, None, PATIENCE, known)(no_room)
    assert known.get(order.definition) is None
    stage_builder(channel, order, None, PATIENCE, known)(no_room).close()
    with pytest.raises(DataLossError, match="arrived damaged"):  # the definition is known now, and the array is not
        stage_builder(damaging, order, None, PATIENCE, known)(no_room)


def test_each_iteration_draws_anew(cluster: Cluster, channel: Channel) -> None:
    dataset = dsnb.Dataset.range(50).shuffle(50, seed=1)
    orders = [plain_of(channel, order_of(cluster, dataset, n)) for n in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(50))


def plain_of(channel: Channel, order: TaskOrder) -> list[int]:
    stage = stage_builder(channel, order, None, PATIENCE, DefinitionCache())(no_room)
    try:
        return [int(element) for element in drain(stage)]
    finally:
        stage.close()


def test_the_next_pass_over_a_pipeline_does_not_ask_for_it_again(cluster: Cluster, channel: Channel) -> None:
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(3))
    digest = cluster.dispatcher.debug_state()["datasets"][dataset_id]
    known = DefinitionCache()
    stage_builder(channel, TaskOrder(task_id="t", dataset_id=dataset_id, definition=digest), None, PATIENCE, known)(
        no_room
    ).close()
    # Under an id that nobody has: whoever asks is refused.
    again = stage_builder(channel, TaskOrder(task_id="t", dataset_id="none", definition=digest), None, PATIENCE, known)(
        no_room
    )
    assert plain(drain(again)) == [0, 1, 2]
    again.close()
    with pytest.raises(CancelledError):
        stage_builder(channel, TaskOrder(task_id="t", dataset_id="none", definition="other"), None, PATIENCE, known)(
            no_room
        )


def test_no_more_definitions_are_kept_than_a_few_megabytes_of_the_newest() -> None:
    known = DefinitionCache()
    large = [bytes([number]) * (1 << 20) for number in range(6)]
    for definition in large:
        known.put(definition)
    assert [known.get(xxhash.xxh3_128_hexdigest(one)) is not None for one in large] == [False] * 2 + [True] * 4


def test_packages_of_other_versions_are_named_with_both_versions() -> None:
    assert differing_libraries([f"numpy=={np.__version__}", "no_such_package==1.0"]) == ""
    assert differing_libraries(["numpy==1.0"]) == f"numpy {np.__version__} instead of 1.0"


def test_a_worker_reports_packages_that_differ_from_those_of_the_pipeline(
    cluster: Cluster, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(cluster, dsnb.Dataset.range(3).map(np.negative))
    here = np.__version__
    monkeypatch.setattr(np, "__version__", "1.0")  # as on another host
    notices: list[str] = []
    stage_builder(channel, order, None, PATIENCE, DefinitionCache(), notice=notices.append)(no_room).close()
    assert len(notices) == 1
    assert f"numpy 1.0 instead of {here}" in notices[0]
