"""Section 1J: which workers are read, and how those in the reader's own process are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import InvalidArgumentError, UnavailableError
from dsnb.transfer import local
from dsnb.transfer.protocol import Sink
from dsnb.wire.messages import ReadRequest
from tests.conformance.conftest import MakeCluster
from tests.pipeline.driving import context
from tests.support.cluster import Cluster
from tests.support.reading import first, numbers
from tests.support.transfers import TESTS_TRANSFER_CHOICE
from tests.support.waiting import wait_for

COUNTS = [pytest.param(here, there, id=f"{here} local and {there} remote") for here in (1, 3) for there in (0, 3)]
Mixed = Callable[[int, int], Cluster]


@pytest.fixture
def mixed(cluster: MakeCluster) -> Mixed:
    """Starts a service with workers of this process and remote ones."""

    def start(here: int, there: int) -> Cluster:
        service = cluster(here)
        for _ in range(there):
            service.add_worker(remote=True)
        return service

    return start


def read(dataset: dsnb.Dataset, service: Any, target: str | None = "LOCAL", **options: Any) -> dsnb.Dataset:
    mode = options.pop("mode", "parallel_epochs")
    if target is not None:
        options["target_workers"] = target
    return dataset.apply(dsnb.distribute(mode, service, **options))


def test_line_144_one_local_worker(mixed: Mixed) -> None:
    assert numbers(read(dsnb.Dataset.range(10), mixed(1, 5).service, "local")) == list(range(10))


@pytest.mark.parametrize("here,there", COUNTS)
def test_line_145_as_many_copies_as_local_workers(mixed: Mixed, here: int, there: int) -> None:
    assert Counter(numbers(read(dsnb.Dataset.range(10), mixed(here, there).service))) == dict.fromkeys(range(10), here)


@pytest.mark.slow
@pytest.mark.parametrize("here,there", COUNTS)
def test_line_146_repeated_on_the_client_s_side(mixed: Mixed, here: int, there: int) -> None:
    elements = numbers(read(dsnb.Dataset.range(10), mixed(here, there).service).repeat(5))
    assert Counter(elements) == dict.fromkeys(range(10), 5 * here)


@pytest.mark.parametrize("here,there", COUNTS)
def test_line_147_prefetched_behind(mixed: Mixed, here: int, there: int) -> None:
    elements = numbers(read(dsnb.Dataset.range(10), mixed(here, there).service).prefetch(10))
    assert Counter(elements) == dict.fromkeys(range(10), here)


@pytest.mark.slow
@pytest.mark.parametrize("here,there", COUNTS)
def test_line_148_multiple_epochs(mixed: Mixed, here: int, there: int) -> None:
    dataset = read(dsnb.Dataset.range(10), mixed(here, there).service)
    for _ in range(10):
        assert Counter(numbers(dataset)) == dict.fromkeys(range(10), here)


@pytest.mark.slow
@pytest.mark.parametrize("here,there", COUNTS)
def test_line_149_dynamic_sharding(mixed: Mixed, here: int, there: int) -> None:
    service = mixed(here, there)
    dataset = read(dsnb.Dataset.range(100), service.service, mode="distributed_epoch", job_name="job")
    assert sorted(numbers(dataset)) == list(range(100))
    tasks = {task.worker: task.state for task in service.job("job").tasks}
    assert [tasks[worker.name] for worker in service.workers[here:]] == ["pending"] * there


@pytest.mark.parametrize("here,there", COUNTS)
def test_line_150_empty_dataset(mixed: Mixed, here: int, there: int) -> None:
    assert numbers(read(dsnb.Dataset.range(0), mixed(here, there).service)) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, "AUTO", "ANY", "any"])
@pytest.mark.parametrize("here,there", [(0, 1), (0, 3), (3, 1), (3, 3)])
def test_line_151_all_workers_are_read(mixed: Mixed, here: int, there: int, target: str | None) -> None:
    elements = numbers(read(dsnb.Dataset.range(10), mixed(here, there).service, target))
    assert Counter(elements) == dict.fromkeys(range(10), here + there)


NO_LOCAL = "Local reads require local workers, but no local worker is found"


def test_line_152_no_local_worker(mixed: Mixed) -> None:
    service = mixed(0, 3)
    dataset = read(dsnb.Dataset.range(10), service.service)
    with pytest.raises(InvalidArgumentError, match=NO_LOCAL) as error:
        iter(dataset).start()
    assert "ANY" in error.value.hint
    wait_for(lambda: not service.status().jobs, what="the end of the job")
    service.add_worker()
    assert numbers(dataset) == list(range(10))


@pytest.mark.parametrize("target", ["ANY", "LOCAL"])
def test_line_153_inconsistent_target_workers(mixed: Mixed, target: str) -> None:
    service = mixed(3, 3).service
    told = "found an existing job with different parameters"
    with (
        iter(read(dsnb.Dataset.range(10), service, "AUTO", job_name="job")).start(),
        pytest.raises(InvalidArgumentError, match=told) as error,
    ):
        iter(read(dsnb.Dataset.range(10), service, target, job_name="job")).start()
    assert f"Existing target workers: <AUTO>; got <{target}>" in str(error.value)


def test_line_154_coordinated_reads_are_never_local() -> None:
    with pytest.raises(InvalidArgumentError, match="Coordinated reads require non-local workers"):
        read(dsnb.Dataset.range(10), "127.0.0.1:9", job_name="job", consumer_index=0, num_consumers=2)


def test_line_155_each_epoch_of_endless_data_begins_at_0(mixed: Mixed) -> None:
    service = mixed(1, 0)
    dataset = read(dsnb.Dataset.range(1 << 40), service.service)
    for _ in range(5):
        with iter(dataset) as elements:
            assert first(5, elements) == list(range(5))
    (worker,) = service.workers
    wait_for(lambda: worker.idle, what="the end of all tasks")


@pytest.mark.parametrize("name", [None, "job"], ids=["anonymous", "named"])
def test_line_156_repeat_distributed_dataset(mixed: Mixed, name: str | None) -> None:
    assert numbers(read(dsnb.Dataset.range(10), mixed(1, 0).service, job_name=name).repeat(3)) == [*range(10)] * 3


def test_line_157_a_pass_that_was_left_goes_on_for_who_asks_for_it_again(mixed: Mixed) -> None:
    service = mixed(1, 0).service
    seen: list[int] = []
    for _ in range(2):
        with iter(read(dsnb.Dataset.range(1 << 40), service, job_name="job")) as elements:
            seen += first(10, elements)
    assert seen == list(range(20))


@pytest.mark.parametrize("there", [0, 3])
def test_line_158_epochs_begin_at_0_after_a_worker_restart(mixed: Mixed, there: int) -> None:
    service = mixed(1, there)
    dataset = read(dsnb.Dataset.range(1 << 40), service.service)
    for _ in range(3):
        with iter(dataset) as elements:
            assert first(5, elements) == list(range(5))
        service.restart_worker(same_port=True)


@pytest.mark.slow
@pytest.mark.parametrize("there", [0, 3])
def test_line_159_epochs_begin_at_0_after_a_dispatcher_restart(
    cluster: MakeCluster, tmp_path: Path, there: int
) -> None:
    service = cluster(1, dispatcher={"work_dir": tmp_path})
    for _ in range(there):
        service.add_worker(remote=True)
    dataset = read(dsnb.Dataset.range(1 << 40), service.service)
    for _ in range(3):
        elements = iter(dataset)
        assert first(5, elements) == list(range(5))
        service.restart_dispatcher()  # while it is read, as in the original: the iterator is dropped afterwards
        del elements


@pytest.mark.parametrize("mode,told", [
    (dsnb.ShardingPolicy.OFF, NO_LOCAL),
    (dsnb.ShardingPolicy.FILE_OR_DATA, "Static sharding policy <FILE_OR_DATA> requires local workers"),
])  # fmt: skip
def test_line_160_the_error_names_a_static_policy(mixed: Mixed, mode: dsnb.ShardingPolicy, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        iter(read(dsnb.Dataset.range(10), mixed(0, 1).service, mode=mode)).start()


@TESTS_TRANSFER_CHOICE
def test_line_161_local_reads_pass_references(mixed: Mixed) -> None:
    def with_its_address(_: int) -> np.ndarray:
        image = np.zeros(100_000, np.int64)
        image[0] = image.ctypes.data
        return image

    service = mixed(1, 0).service
    for image in read(dsnb.Dataset.range(4).map(with_its_address), service):
        assert image[0] == image.ctypes.data, "the reader got a copy"
    assert numbers(read(dsnb.Dataset.range(0), service)) == []


@pytest.mark.parametrize("protocol", [None, "grpc"])
def test_line_162_network_reads_do_not_need_the_registry(mixed: Mixed, protocol: str | None) -> None:
    service = mixed(1, 0)
    local.withdraw(service.workers[0].uid)
    dataset = read(dsnb.Dataset.range(10), service.service, None, data_transfer_protocol=protocol)
    assert numbers(dataset) == list(range(10))


def test_line_163_the_registry_of_local_workers(mixed: Mixed) -> None:
    service = mixed(2, 1)
    known, other, remote = service.workers
    assert local.find(known.uid) is known
    assert local.find(remote.uid) is None
    assert local.find("nobody") is None
    known.stop()
    assert local.find(known.uid) is None
    assert local.find(other.uid) is other
    local.withdraw("nobody")


class Nowhere(Sink):
    """A sink for a reading that is refused."""

    def deliver(self, piece: Any) -> None:
        raise AssertionError(piece)

    end = fail = recalled = progress = deliver


def test_line_164_a_worker_that_was_stopped_is_no_longer_read(mixed: Mixed) -> None:
    service = mixed(1, 0)
    (worker,) = service.workers
    with iter(read(dsnb.Dataset.range(1 << 40), service.service, job_name="job")) as elements:
        next(elements)
        (task,) = service.job("job").tasks
        worker.stop()
        with pytest.raises(UnavailableError, match=f"the worker {worker.name} is stopping"):
            worker.open(ReadRequest(task_id=task.task_id, client_id="late", trainer_id="", max_bytes=1), Nowhere())


def test_line_165_a_reader_that_was_closed_gets_nothing_more(mixed: Mixed) -> None:
    dataset = read(dsnb.Dataset.range(1 << 40), mixed(1, 0).service)
    stage = dataset.operation.build(context())
    stage.pull(1)
    stage.close()
    with pytest.raises(dsnb.errors.CancelledError):
        stage.pull(1)
    elements = iter(dataset)
    next(elements)
    elements.close()
    assert list(elements) == []
