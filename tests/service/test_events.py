"""The events of a service tell when trainers joined and left."""

from __future__ import annotations

from itertools import islice

import pytest

import dsnb
from tests.support.cluster import Cluster
from tests.support.waiting import wait_for


def trainer_events(cluster: Cluster) -> list[str]:
    return [event.text for event in cluster.status().events if event.text.startswith("trainer")]


@pytest.mark.slow
def test_a_trainer_that_reads_epochs_joins_once_and_leaves_once() -> None:
    with Cluster(workers=1) as cluster:
        cache = dsnb.CrossTrainerCache(trainer_id="lr=0.1")
        shared = dsnb.distribute("parallel_epochs", cluster.service, job_name="train", cross_trainer_cache=cache)
        data = dsnb.Dataset.range(10).repeat().apply(shared)
        for _ in range(3):
            assert len(list(islice(data, 20))) == 20
        assert trainer_events(cluster) == ["trainer 'lr=0.1' joined job 'train'"]
        events = wait_for(lambda: trainer_events(cluster)[1:], what="the trainer to have left")
        assert events == ["trainer 'lr=0.1' left job 'train' after 60 elements"]
