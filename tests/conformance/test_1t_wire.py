"""Section 1T: what the dispatcher answers over the wire."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import dsnb
from dsnb.errors import CancelledError, FailedPreconditionError, InvalidArgumentError
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import Empty
from dsnb.wire.methods import Method
from tests.conformance.conftest import MakeCluster
from tests.support.reading import first, numbers, run_in_threads
from tests.support.waiting import wait_for


def job(dataset: dsnb.Dataset, service: Any, name: str = "job", **options: Any) -> dsnb.Dataset:
    mode = options.pop("mode", "parallel_epochs")
    return dataset.apply(dsnb.distribute(mode, service, job_name=name, **options))


def test_line_326_registering_twice_under_one_id(cluster: MakeCluster) -> None:
    service = cluster(0).service
    ids = {dsnb.register_dataset(service, dsnb.Dataset.range(10), dataset_id="dataset_id") for _ in range(2)}
    assert ids == {"dataset_id"}


def test_line_327_datasets_that_do_not_match(cluster: MakeCluster) -> None:
    service = cluster(0).service
    dsnb.register_dataset(service, dsnb.Dataset.range(10), dataset_id="dataset_id")
    with pytest.raises(InvalidArgumentError, match="Datasets with the same ID should have the same structure"):
        dsnb.register_dataset(service, dsnb.Dataset.from_tensors("text"), dataset_id="dataset_id")


def test_line_328_one_name_is_one_job(cluster: MakeCluster) -> None:
    one = cluster(1)
    with iter(job(dsnb.Dataset.range(10), one.service)).start(), iter(job(dsnb.Dataset.range(10), one.service)).start():
        assert one.job("job").clients == 2
        assert len(one.status().jobs) == 1


def test_line_329_all_parameters_that_differ_are_listed(cluster: MakeCluster) -> None:
    service = cluster(1).service
    endless = dsnb.Dataset.range(10).repeat()
    other = job(
        endless.map(lambda x: x),
        service,
        mode=dsnb.ShardingPolicy.DYNAMIC,
        target_workers="LOCAL",
        cross_trainer_cache=dsnb.CrossTrainerCache("trainer"),
    )
    refused = pytest.raises(InvalidArgumentError, match="found an existing job with different parameters")
    with iter(job(endless, service)).start(), refused as error:
        iter(other).start()
    for told in (
        "Existing processing mode: <OFF>; got <DYNAMIC>",
        "Existing cross-trainer cache: <disabled>; got <enabled>",
        "Existing target workers: <AUTO>; got <LOCAL>",
        "Existing dataset: <1001>; got <1000>: the first operation that differs is map",
    ):
        assert told in str(error.value)


@pytest.mark.parametrize("mode", [None, "COLOCATED", "REMOTE", "HYBRID"])
def test_line_330_clients_act_on_the_deployment_mode(cluster: MakeCluster, mode: str | None) -> None:
    one = cluster(1, dispatcher={"deployment_mode": mode})
    one.add_worker(remote=True)
    shards = dsnb.Dataset.range(10).apply(dsnb.distribute(dsnb.ShardingPolicy.DATA, one.service))
    assert sorted(numbers(shards)) == list(range(0, 10, 2) if mode == "COLOCATED" else range(10))
    dynamic = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", one.service))
    assert sorted(numbers(dynamic)) == list(range(10))


def test_line_332_no_sharding(cluster: MakeCluster) -> None:
    assert Counter(numbers(job(dsnb.Dataset.range(20), cluster(3).service))) == dict.fromkeys(range(20), 3)


@pytest.mark.parametrize("mode", ["DYNAMIC", "DATA", "FILE_OR_DATA"])
def test_line_332_sharding(cluster: MakeCluster, mode: str) -> None:
    dataset = job(dsnb.Dataset.range(20), cluster(3).service, mode=dsnb.ShardingPolicy[mode])
    assert sorted(numbers(dataset)) == list(range(20))


def test_line_333_a_pending_read_is_cancelled(cluster: MakeCluster) -> None:
    one = cluster(0)
    elements = iter(job(dsnb.Dataset.range(10), one.service)).start()

    def stop() -> None:
        wait_for(lambda: one.job("job").clients == 1, what="the reader to wait")
        elements.close()

    def wait() -> Any:
        try:
            return next(elements, "the end")
        except CancelledError as error:
            return error

    outcome, _ = run_in_threads([wait, stop])
    assert outcome == "the end" or isinstance(outcome, CancelledError)


def test_line_334_the_workers_are_listed(cluster: MakeCluster) -> None:
    one = cluster(1)
    (listed,) = one.status().workers
    assert (listed.name, listed.address, listed.state) == ("w0", one.workers[0].address, "running")


def test_line_335_the_state_of_a_dispatcher(cluster: MakeCluster) -> None:
    one = cluster(1)
    with iter(dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", one.service))).start():
        status = one.status()
        (reading,) = status.jobs
        assert (reading.dataset_id, reading.anonymous, reading.clients) == ("1000", True, 1)
        assert reading.name.startswith("anonymous-")
        assert [worker.address for worker in status.workers] == [one.workers[0].address]


@pytest.mark.usefixtures("patient_status")
def test_line_336_the_state_of_a_worker(cluster: MakeCluster) -> None:
    one = cluster(1)
    with iter(job(dsnb.Dataset.range(10), one.service, max_outstanding_requests=1)) as elements:
        first(1, elements)
        (task,) = one.job("job").tasks
        assert (task.worker, task.iteration, task.incarnation) == ("w0", 0, 1)
        assert task.state in ("running", "ended")  # of ten numbers all may have been produced already
        assert len(numbers(elements)) == 9
        assert (one.job("job").state, one.job("job").produced) == ("finished", 10)


def test_line_337_a_server_of_another_version_says_so(cluster: MakeCluster) -> None:
    one = cluster(0)
    channel = open_channel(one.address, one.dispatcher.token)
    try:
        with pytest.raises(FailedPreconditionError, match="does not know this call") as error:
            channel.call(Method("dsnb.v1.Dispatcher", "NotYetThere", Empty, Empty), Empty())
    finally:
        channel.close()
    assert "another version of dsnb" in error.value.hint
    assert dsnb.register_dataset(one.service, dsnb.Dataset.range(1))
