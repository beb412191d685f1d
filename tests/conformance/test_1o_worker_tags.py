"""Section 1O: workers tagged "COLOCATED" are left out by readers in other processes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

import dsnb
from dsnb.errors import InvalidArgumentError
from dsnb.transfer import local
from tests.conformance.conftest import MakeCluster
from tests.support.cluster import Cluster
from tests.support.reading import numbers, run_in_threads
from tests.support.waiting import wait_for

TAG = "COLOCATED"
Tagged = Callable[..., Cluster]


@pytest.fixture
def tagged(cluster: MakeCluster) -> Tagged:
    """Starts a service with tagged workers of this process, tagged remote ones, and remote ones without a tag."""

    def start(here: int, there: int, untagged: int = 0, tags: tuple[str, ...] = (TAG,)) -> Cluster:
        service = cluster(0)
        for _ in range(here):
            service.add_worker(worker_tags=tags)
        for _ in range(there):
            service.add_worker(remote=True, worker_tags=tags)
        for _ in range(untagged):
            service.add_worker(remote=True)
        return service

    return start


def read(service: Cluster, count: int = 100, mode: str = "parallel_epochs", **options: Any) -> list[int]:
    return numbers(dsnb.Dataset.range(count).apply(dsnb.distribute(mode, service.service, **options)))


@pytest.mark.parametrize("there", [0, 3])
def test_line_243_only_the_local_worker_is_read(tagged: Tagged, there: int) -> None:
    assert read(tagged(1, there)) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("here", [1, 3])
@pytest.mark.parametrize("there", [0, 3])
def test_line_244_local_workers_and_those_without_the_tag(tagged: Tagged, here: int, there: int) -> None:
    assert Counter(read(tagged(here, there, 1))) == dict.fromkeys(range(100), here + 1)


def test_line_245_a_local_worker_without_the_tag(cluster: MakeCluster) -> None:
    service = cluster(1)
    for _ in range(3):
        service.add_worker(remote=True, worker_tags=[TAG])
    assert read(service) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("here", [1, 3])
@pytest.mark.parametrize("there", [0, 3])
def test_line_246_dynamic_sharding(tagged: Tagged, here: int, there: int) -> None:
    assert sorted(read(tagged(here, there, 1), mode="distributed_epoch")) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("here", [1, 3])
@pytest.mark.parametrize("there", [0, 3])
def test_line_247_coordinated_reads_read_all_workers(tagged: Tagged, here: int, there: int) -> None:
    consumers, service = 4, tagged(here, there, 1)
    data = dsnb.Dataset.range(1 << 40)

    def consume(index: int) -> list[int]:
        mode = dsnb.distribute(
            "parallel_epochs", service.service, job_name="job", consumer_index=index, num_consumers=consumers
        )
        with iter(data.apply(mode)) as elements:
            return [int(number) for number in islice(elements, 200 // consumers)]

    columns = run_in_threads([lambda index=index: consume(index) for index in range(consumers)], 60.0)
    for rows in zip(*columns, strict=True):
        assert list(rows) == list(range(rows[0], rows[0] + consumers))
    states = [task.state for task in service.job("job").tasks]
    assert len(states) == here + there + 1
    assert "pending" not in states


@pytest.mark.slow
@pytest.mark.parametrize("here", [1, 3])
@pytest.mark.parametrize("there", [1, 3])
def test_line_248_remote_workers_that_join_in_the_middle(tagged: Tagged, here: int, there: int) -> None:
    service = tagged(here, there)
    mode = dsnb.distribute("parallel_epochs", service.service, job_name="job", max_outstanding_requests=8)
    with iter(dsnb.Dataset.range(200).apply(mode)) as elements:
        got = [int(next(elements)) for _ in range(100)]
        for tags in ((), (), (TAG,), (TAG,)):
            service.add_worker(remote=True, worker_tags=tags)
        wait_for(lambda: len(service.job("job").tasks) == here + there + 4, what="the tasks of the new workers")
        got += numbers(elements)
    assert Counter(got) == dict.fromkeys(range(200), here + 2)


def test_line_249_several_tags(tagged: Tagged) -> None:
    assert read(tagged(1, 2, tags=("COLOCATED", "other", "another"))) == list(range(100))


def test_line_250_other_tags_change_nothing(tagged: Tagged) -> None:
    service = tagged(2, 2, tags=("unused", "not COLOCATED"))
    assert Counter(read(service)) == dict.fromkeys(range(100), 4)


def test_line_251_a_tag_cannot_be_empty() -> None:
    with pytest.raises(InvalidArgumentError, match="Worker tags cannot be empty"):
        dsnb.WorkerConfig("127.0.0.1:9", worker_tags=["", TAG])


# ---- what the original does not promise


def test_any_reads_tagged_workers_too(tagged: Tagged) -> None:
    assert Counter(read(tagged(1, 2), target_workers="ANY")) == dict.fromkeys(range(100), 3)


def test_a_reader_that_may_read_no_worker_is_told_that_they_are_tagged(
    tagged: Tagged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsnb.client.reader.UNREACHABLE_TIMEOUT_S", 0.5)
    with pytest.raises(dsnb.errors.DeadlineExceededError, match="no worker, other than those tagged COLOCATED, for"):
        read(tagged(0, 2))


@pytest.mark.slow
def test_the_work_of_a_lost_worker_goes_to_one_without_the_tag(tagged: Tagged) -> None:
    service = tagged(0, 2, 2)
    mode = dsnb.distribute("distributed_epoch", service.service, job_name="job", max_outstanding_requests=4)
    with iter(dsnb.Dataset.range(2_000).apply(mode)) as elements:
        got = [int(next(elements)) for _ in range(100)]
        service.workers[2].stop()
        got += numbers(elements)
    assert Counter(got) == Counter(range(2_000))


def test_case_does_not_matter_in_tags_and_deployment_modes(tagged: Tagged) -> None:
    assert read(tagged(1, 2, tags=("Colocated",))) == list(range(100))
    assert dsnb.DispatcherConfig(deployment_mode="hybrid").deployment_mode == "HYBRID"


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["stop", "remove"])
def test_a_reader_follows_what_it_has_begun_to_a_tagged_worker(tagged: Tagged, leave: str) -> None:
    service = tagged(0, 1)
    service.add_worker(worker_tags=[TAG])
    service.add_worker(remote=True)
    mode = dsnb.distribute("distributed_epoch", service.service, job_name="job", max_outstanding_requests=4)
    with iter(dsnb.Dataset.range(2_000).apply(mode)) as elements:
        got = [int(next(elements)) for _ in range(200)]
        if leave == "stop":
            service.workers[2].stop()
        else:
            service.service.remove(service.workers[2].name)
        got += numbers(elements)
    assert Counter(got) == Counter(range(2_000))


@pytest.mark.slow
def test_the_rest_of_a_tagged_worker_whose_readers_are_gone_comes_to_the_others(tagged: Tagged) -> None:
    service = tagged(0, 1, 1)
    data, mode = dsnb.Dataset.range(2_000), {"job_name": "job", "max_outstanding_requests": 4}
    with iter(data.apply(dsnb.distribute("distributed_epoch", service.service, **mode))) as elements:
        got = [int(next(elements)) for _ in range(20)]
        service.service.wait_until(lambda status: len(status.job("job").tasks) == 2)
        (tagged_worker, _) = service.workers
        local.offer(tagged_worker.uid, tagged_worker)  # as for a reader in its own process
        with iter(data.apply(dsnb.distribute("distributed_epoch", service.service, **mode))) as others:
            got += [int(next(others)) for _ in range(50)]
        local.withdraw(tagged_worker.uid)
        got += numbers(elements)
    assert Counter(got) == Counter(range(2_000))


def test_no_loss_is_announced_of_a_worker_that_is_left_out(tagged: Tagged) -> None:
    service = tagged(0, 1, 1)
    with (
        iter(dsnb.Dataset.range(2_000).apply(dsnb.distribute("parallel_epochs", service.service, job_name="j"))) as one,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        got = [int(next(one)) for _ in range(10)]
        service.workers[0].stop()
        service.service.wait_until(lambda status: len(status.workers) == 1)
        got += numbers(one)
    assert got == list(range(2_000))


def test_the_status_has_the_tags_of_each_worker(tagged: Tagged) -> None:
    assert [worker.tags for worker in tagged(1, 1, 1).status().workers] == [(TAG,), (TAG,), ()]
