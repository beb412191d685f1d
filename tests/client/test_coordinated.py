"""One consumer of a coordinated read, by itself; what consumers do together is in `tests/service/test_rounds`."""

from __future__ import annotations

import dsnb
from dsnb.client.coordinated import CoordinatedStage
from dsnb.client.options import ReadOptions, ServiceAddress, ShardingPolicy
from tests.support.cluster import Cluster
from tests.support.waiting import wait_for


def test_a_consumer_that_was_closed_holds_no_elements() -> None:
    with Cluster(1) as cluster:
        dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(1 << 40).repeat())
        options = ReadOptions(mode=ShardingPolicy.OFF, job_name="job", trainer_id="consumer 0", consumers=1)
        address = ServiceAddress(address=cluster.address, token=cluster.dispatcher.token)
        stage = CoordinatedStage(address, dataset_id, options)
        (task,) = (task.task_id for task in cluster.job("job").tasks)
        turns = stage._inbox.rounds.turns
        wait_for(lambda: len(turns(task).items) > 1, what="elements whose rounds have not come")
        stage.close()
        assert (len(turns(task).items), turns(task).nbytes) == (0, 0)
