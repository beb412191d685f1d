"""One consumer of a coordinated read, by itself; what consumers do together is in `tests/service/test_rounds`."""

from __future__ import annotations

import pytest

import dsnb
from dsnb.client.coordinated import CoordinatedStage
from dsnb.client.options import ReadOptions, ServiceAddress, ShardingPolicy
from dsnb.client.origin import current_origin
from dsnb.errors import CancelledError, UnavailableError
from tests.support.cluster import Cluster
from tests.support.transfers import no_route
from tests.support.waiting import wait_for


def stage_of(cluster: Cluster) -> CoordinatedStage:
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(1 << 40).repeat())
    options = ReadOptions(mode=ShardingPolicy.OFF, job_name="job", trainer_id="consumer 0", num_consumers=1)
    address = ServiceAddress(address=cluster.address, token=cluster.dispatcher.token)
    return CoordinatedStage(address, dataset_id, options, current_origin())


def test_a_consumer_that_was_closed_holds_no_elements() -> None:
    with Cluster(1) as cluster:
        stage = stage_of(cluster)
        wait_for(lambda: stage.debug_state()["elements"] > 1, what="elements whose rounds have not come")
        stage.close()
        assert stage.debug_state() == {"tasks": [], "elements": 0, "bytes": 0}


def test_a_consumer_whose_job_was_cancelled_asks_no_worker_any_more_though_it_is_kept() -> None:
    with Cluster(1) as cluster:
        stage = stage_of(cluster)
        wait_for(lambda: len(stage.debug_state()["tasks"]) == 1, what="the task to be read")
        cluster.service.cancel("job")
        wait_for(lambda: stage.debug_state()["tasks"] == [], what="the task to be closed")
        with pytest.raises(CancelledError):
            stage.pull(1)
        stage.close()


@pytest.mark.slow
def test_a_consumer_is_told_of_a_worker_that_runs_and_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    no_route(monkeypatch)
    with Cluster(1) as cluster:
        stage = stage_of(cluster)
        with pytest.raises(UnavailableError, match=r"worker w0 cannot be reached at .*no route"):
            stage.pull(1)
        stage.close()
