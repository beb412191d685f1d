"""Static sharding as the dispatcher decides it: how many shards, whose they are, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsnb.dispatcher import events as e
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.wire.messages import JoinRequest, WorkerReport
from tests.dispatcher.model import SimClient
from tests.dispatcher.simulation import CONFIG, Service

LISTED = replace(CONFIG, worker_addresses=["a", "b", "c"])


def shards(service: Service, client: SimClient) -> dict[str, int]:
    """Which shard each worker of a client's pass has."""
    tasks = [service.core.state.tasks[task] for task in client.tasks]
    return {task.worker: task.shard for task in tasks}


def owners(service: Service, client: SimClient) -> list[str]:
    """The worker of each shard of a client's pass."""
    tasks = [service.core.state.tasks[task] for task in client.tasks]
    return [task.worker for task in sorted(tasks, key=lambda task: task.shard)]


def states(service: Service, client: SimClient) -> list[str]:
    return service.core.state.iteration(client.job, client.number).shards


def at_work(
    workers: int, *, inexact: str = "", mode: str = "DATA", dataset: dict[str, Any] | None = None, **changes: Any
) -> tuple[Service, SimClient]:
    service = Service()
    for number in range(workers):
        service.add_worker(f"w{number}")
    fields = {"inexact_reason": inexact, "inexact_shard_reason": inexact} | (dataset or {})
    return service, service.join(service.register(20, **fields), mode=mode, **changes)


def lose_with_some_received(service: Service, client: SimClient, uid: str) -> None:
    """A worker dies of whose shard the client received 4 elements and consumed one."""
    task = service.task(service.workers[uid])
    service.make(task, 4)
    service.consume(task, 1)
    service.read(client)
    service.stop(service.workers[uid])
    service.hear(client)


def announced(service: Service) -> list[str]:
    return [one.text for one in service.instructions if isinstance(one, e.Announce) and one.level == "warning"]


# ---- without a list


def test_the_workers_that_are_there_are_numbered_when_a_pass_begins() -> None:
    service, client = at_work(3, job_name="job")
    assert shards(service, client) == {"w0": 0, "w1": 1, "w2": 2}
    service.add_worker("late")
    assert shards(service, client) == {"w0": 0, "w1": 1, "w2": 2}
    other = service.join("1000", "job", "DATA", iteration=1)
    assert shards(service, other) == {"w0": 0, "w1": 1, "w2": 2, "late": 3}
    assert len(states(service, other)) == 4


def test_a_worker_that_drains_is_not_counted() -> None:
    service = Service()
    leaving, staying = service.add_worker("leaving"), service.add_worker("staying")
    service.drain(leaving)
    client = service.join(service.register(20), mode="DATA")
    assert shards(service, client) == {staying.uid: 0}


def test_a_shard_goes_on_with_another_worker_and_nothing_of_it_is_lost_or_comes_twice() -> None:
    service, client = at_work(3)
    for uid in ("w0", "w1", "w2"):
        service.make(service.task(service.workers[uid]), 4)
    service.read(client)
    service.stop(service.workers["w1"])
    service.hear(client)
    assert owners(service, client) == ["w0", "w0", "w2"]
    service.add_worker("new")
    assert owners(service, client) == ["w0", "w0", "w2"]
    for worker in service.workers.values():
        for task in worker.tasks.values():
            service.finish(worker, task)
    assert client.finished
    assert not client.losses


def test_a_successor_that_came_before_the_loss_was_seen_has_the_shard_when_it_is() -> None:
    service, client = at_work(2)
    service.add_worker("early")
    assert shards(service, client) == {"w0": 0, "w1": 1}
    service.stop(service.workers["w1"])
    service.hear(client)
    assert owners(service, client) == ["w0", "early"]
    service.drain(service.add_worker("drains"))
    service.stop(service.workers["early"])
    service.hear(client)
    assert owners(service, client) == ["w0", "w0"]


def test_a_worker_that_is_lost_in_the_same_moment_gets_no_shard() -> None:
    service, client = at_work(1)
    service.add_worker("idle")
    for worker in list(service.workers.values()):
        service.break_worker(worker)
    service.wait(4 * CONFIG.reconnect_ms / 1000, service.keep_alive)
    assert not service.core.state.workers
    assert owners(service, client) == [""]
    service.add_worker("new")
    assert owners(service, client) == ["new"]
    assert not client.losses


def test_a_worker_that_is_started_again_at_its_address_has_its_shard_again() -> None:
    service, client = at_work(2)
    service.add_worker("again", service.workers["w0"].address)
    service.hear(client)
    assert shards(service, client) == {"again": 0, "w1": 1}


def test_a_shard_that_was_produced_to_its_end_is_not_produced_again() -> None:
    service, client = at_work(2)
    first = service.workers["w0"]
    service.finish(first, service.task(first))
    service.stop(first)
    service.add_worker("new")
    assert shards(service, client) == {"w1": 1}
    assert states(service, client) == ["ended", "begun"]
    service.finish(service.workers["w1"], service.task(service.workers["w1"]))
    assert client.finished


def test_a_pass_ends_without_a_shard_that_nobody_can_take_over() -> None:
    service, client = at_work(2, inexact="it draws at random")
    task = service.task(service.workers["w1"])
    service.make(task, 4)
    service.consume(task, 1)
    service.stop(service.workers["w1"])
    service.hear(client)
    assert states(service, client) == ["begun", "ended"]
    service.finish(service.workers["w0"], service.task(service.workers["w0"]))
    assert client.finished
    assert [loss.worker for loss in client.losses] == ["w1"]


@pytest.mark.parametrize("mode", ["DATA", "FILE_OR_DATA"])
@pytest.mark.parametrize("uid, size", [("w0", 7), ("w2", 6)])
def test_a_shard_that_nobody_can_take_over_is_lost_with_the_number_of_its_elements(
    mode: str, uid: str, size: int
) -> None:
    dataset = {"cardinality": 20, "no_file_sharding_reason": "a source reads no files"}
    service, client = at_work(3, inexact="it draws at random", mode=mode, dataset=dataset)
    lose_with_some_received(service, client, uid)
    assert [loss.elements for loss in client.losses] == [size - 4]
    assert (
        f"job {client.job!r}: {size - 4} elements of the part of worker {uid} did not reach its readers"
        in announced(service)
    )


def test_one_lost_element_is_told_in_the_singular() -> None:
    service, client = at_work(4, inexact="it draws at random", dataset={"cardinality": 20})
    lose_with_some_received(service, client, "w1")
    assert f"job {client.job!r}: 1 element of the part of worker w1 did not reach its readers" in announced(service)


@pytest.mark.parametrize("mode, length", [("FILE", 20), ("FILE_OR_DATA", 20), ("HINT", 20), ("DATA", -2)])
def test_a_shard_whose_size_nobody_knows_is_lost_with_words_that_say_so(mode: str, length: int) -> None:
    dataset = {"cardinality": length, "num_files": 4, "has_shard_hint": mode == "HINT"}
    service, client = at_work(2, inexact="it draws at random", mode=mode, dataset=dataset)
    lose_with_some_received(service, client, "w1")
    assert [(loss.elements, loss.splits) for loss in client.losses] == [(-1, 0)]
    text = f"job {client.job!r}: an unknown number of elements of the part of worker w1 did not reach its readers"
    assert text in announced(service)


@pytest.mark.parametrize("mode", ["DATA", "FILE_OR_DATA", "HINT"])
def test_a_shard_by_data_or_hint_is_taken_over_though_its_pipeline_asks_for_no_order(mode: str) -> None:
    dataset = {
        "inexact_reason": "map(f) hands out what is ready first (deterministic=False)",
        "inexact_shard_reason": "",
        "no_file_sharding_reason": "a source reads no files",
        "has_shard_hint": mode == "HINT",
    }
    service, client = at_work(2, mode=mode, dataset=dataset)
    lose_with_some_received(service, client, "w1")
    assert owners(service, client) == ["w0", "w0"]
    assert not client.losses


@pytest.mark.parametrize("mode", ["FILE", "FILE_OR_DATA"])
def test_a_shard_of_files_is_not_taken_over_where_its_pipeline_asks_for_no_order(mode: str) -> None:
    service, client = at_work(2, mode=mode, dataset={"num_files": 4, "inexact_reason": "it hands out what is ready"})
    lose_with_some_received(service, client, "w1")
    assert [loss.worker for loss in client.losses] == ["w1"]


def test_a_pass_whose_last_shard_is_given_up_is_over() -> None:
    service, client = at_work(1, inexact="it draws at random")
    [worker] = service.workers.values()
    service.make(service.task(worker), 4)
    service.consume(service.task(worker), 1)
    service.stop(worker)
    service.hear(client)
    assert client.finished
    assert service.see_end(client)


def test_without_any_worker_no_pass_begins_and_no_job_is_left() -> None:
    service = Service()
    dataset = service.register(20)
    with pytest.raises(InvalidArgumentError, match="num_workers should be >= 1, currently 0"):
        service.join(dataset, "job", "DATA")
    assert not service.core.state.jobs
    service.add_worker("w")
    assert shards(service, service.join(dataset, "job", "DATA")) == {"w": 0}


def test_all_shards_of_a_pass_have_one_entropy_and_keep_it() -> None:
    service, _ = at_work(2, job_name="job")
    entropy = service.core.state.iteration("job", 0).entropy
    assert entropy
    service.join("1000", "job", "DATA")
    assert service.core.state.iteration("job", 0).entropy == entropy
    service.restart()
    assert service.core.state.iteration("job", 0).entropy == entropy


# ---- with a list


def test_the_place_in_the_list_is_the_shard_whatever_the_order_of_arrival() -> None:
    service = Service(LISTED)
    for host in "cab":
        service.add_worker(host, f"{host}:5000")
    client = service.join(service.register(20), mode="DATA")
    assert shards(service, client) == {"a": 0, "b": 1, "c": 2}


def test_who_is_not_there_yet_gets_its_own_shard_when_it_comes_and_is_named_until_then() -> None:
    service = Service(LISTED)
    service.add_worker("c", "c:5000")
    dataset = service.register(20)
    joined = service.call(
        JoinRequest(
            dataset_id=dataset, job_name="job", mode="DATA", cached=False, trainer_id="", compression="AUTO",
            target_workers="AUTO", iteration=0,
        )
    )  # fmt: skip
    assert joined.missing_shards == ("0 of 3 (a)", "1 of 3 (b)")
    client = service.clients[joined.client_id]
    service.add_worker("b", "b:5000")
    assert shards(service, client) == {"c": 2, "b": 1}
    for uid in "cb":
        service.finish(service.workers[uid], service.task(service.workers[uid]))
    told = [one.text for one in service.instructions if isinstance(one, e.Announce) and "ended" in one.text]
    assert told == [
        "pass 1 of job 'job' ended without shard 0 of 3 (a): no worker came",
        "pass 1 of job 'job' ended",
    ]
    assert client.finished


def test_a_successor_on_another_port_has_the_place_and_the_shard() -> None:
    service = Service(LISTED)
    for host in "abc":
        service.add_worker(host, f"{host}:5000")
    client = service.join(service.register(20), mode="DATA")
    service.stop(service.workers["b"])
    service.add_worker("new", "b:6000")
    service.hear(client)
    assert shards(service, client) == {"a": 0, "new": 1, "c": 2}


def test_a_worker_that_is_not_in_the_list_is_not_let_in() -> None:
    service = Service(LISTED)
    event = e.WorkerArrives(report=WorkerReport(uid="d", address="d:5000", isolation="thread", pid=1))
    decision = service.handle(event)
    assert isinstance(decision.error, FailedPreconditionError)
    assert not decision.records
    assert not service.core.state.workers


def test_workers_that_were_there_before_a_list_have_their_places_in_it() -> None:
    service = Service()
    for host in "bxa":
        service.add_worker(host, f"{host}:5000")
    dataset = service.register(20)
    unfinished = service.join(dataset, "job", "DATA")
    service.config = LISTED
    service.restart(absent=lambda one: one is service.workers["x"])
    assert {worker.uid: worker.static_index for worker in service.core.state.workers.values()} == {
        "b": 1,
        "x": -1,
        "a": 0,
    }
    assert shards(service, service.join(dataset, mode="DATA")) == {"a": 0, "b": 1}
    assert shards(service, unfinished) == {"b": 0, "x": 1, "a": 2}, "what has begun stays as it is"
    with pytest.raises(FailedPreconditionError, match="x:5000 is none of a, b, c"):
        service.arrive(service.workers["x"])


def test_a_worker_keeps_its_place_in_a_list_that_has_it_still() -> None:
    service = Service(replace(LISTED, worker_addresses=("a", "a", "b")))
    for number, host in enumerate("aab"):
        service.add_worker(f"{host}{number}", f"{host}:{number}")
    service.stop(service.workers["a0"])
    service.config = replace(LISTED, worker_addresses=("a", "a", "c", "b"))
    service.restart()
    assert {worker.uid: worker.static_index for worker in service.core.state.workers.values()} == {"a1": 1, "b2": 3}


def test_a_worker_that_finds_its_place_when_it_comes_back_gets_the_shard_that_nobody_has() -> None:
    service = Service(replace(LISTED, worker_addresses=("a", "b")))
    service.add_worker("first", "a:1")
    service.config = replace(LISTED, worker_addresses=("a:2", "b"))
    service.restart(absent=lambda _: True)
    service.add_worker("b", "b:1")
    client = service.join(service.register(20), mode="DATA")
    assert shards(service, client) == {"b": 1}
    service.core.config = service.config = replace(LISTED, worker_addresses=("a", "b"))
    service.arrive(service.workers["first"])
    assert shards(service, client) == {"b": 1, "first": 0}


# ---- what cannot be


def test_fewer_files_than_workers_are_refused_and_other_modes_are_not() -> None:
    service = Service()
    for number in range(3):
        service.add_worker(f"w{number}")
    dataset = service.register(20, num_files=2)
    for mode in ("FILE", "FILE_OR_DATA"):
        with pytest.raises(InvalidArgumentError, match="not enough for the required 3 shards/workers"):
            service.join(dataset, "job", mode)
    assert len(service.join(dataset, "job", "DATA").tasks) == 3


def test_a_pass_that_has_begun_is_joined_however_many_workers_there_are_now() -> None:
    service = Service()
    service.add_worker("w")
    dataset = service.register(20, num_files=1)
    service.join(dataset, "job", "FILE")
    service.add_worker("second")
    assert len(service.join(dataset, "job", "FILE").tasks) == 1
    with pytest.raises(InvalidArgumentError, match="not enough for the required 2 shards/workers"):
        service.join(dataset, "job", "FILE", iteration=1)


def test_what_the_pipeline_does_not_allow_is_refused() -> None:
    service = Service()
    service.add_worker("w")
    with pytest.raises(NotFoundError, match="no files here"):
        service.join(service.register(20, no_file_sharding_reason="no files here"), mode="FILE")
    with pytest.raises(FailedPreconditionError, match=r"ShardingPolicy\.HINT"):
        service.join(service.register(21, has_shard_hint=True), mode="OFF")
