"""Tar shards through a service: each sample once, whatever leaves and wherever reading resumes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from tests.support.cluster import Cluster
from tests.support.shards import samples, shard

SAMPLES = Counter(f"{n:04}" for n in range(80))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards")
    for number in range(8):
        shard(folder / f"train-{number:02}.tar", samples(10 * number, 10))
    return str(Path(folder) / "train-{00..07}.tar")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=3) as cluster:
        yield cluster


def distributed(shards: str, cluster: Cluster) -> dsnb.Dataset:
    return dsnb.WebDataset(shards).apply(dsnb.distribute("distributed_epoch", cluster.service))


def keys(found: list[dict[str, str]]) -> Counter[str]:
    return Counter(one["__key__"] for one in found)


def test_each_sample_is_read_once_when_workers_leave(shards: str, cluster: Cluster) -> None:
    with iter(distributed(shards, cluster)) as elements:
        got = list(itertools.islice(elements, 15))
        cluster.service.remove(cluster.workers[0].name)
        cluster.workers[1].stop()
        got += list(elements)
    assert keys(got) == SAMPLES


def test_reading_goes_on_inside_a_shard_on_a_new_service(shards: str, cluster: Cluster) -> None:
    with iter(distributed(shards, cluster)) as elements:
        got = list(itertools.islice(elements, 13))
        state = json.loads(json.dumps(elements.state_dict()))
    with Cluster(workers=2) as other, iter(distributed(shards, other)) as elements:
        elements.load_state_dict(state)
        got += list(elements)
    assert keys(got) == SAMPLES
