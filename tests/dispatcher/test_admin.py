from __future__ import annotations

from dataclasses import dataclass

import pytest

from dsnb.dispatcher import events as e
from dsnb.errors import NotFoundError
from dsnb.pipeline.operation import INFINITE_CARDINALITY
from dsnb.wire.messages import ClientReport, ControlRequest
from dsnb.wire.schedule import ConsumerReport
from tests.dispatcher.model import SimClient, SimWorker
from tests.dispatcher.rounds_world import World
from tests.dispatcher.simulation import Service


@dataclass
class Reading:
    """A service with two workers, and a client that reads a job called train."""

    service: Service
    workers: list[SimWorker]
    dataset: str
    client: SimClient


@pytest.fixture
def reading() -> Reading:
    service = Service()
    workers = [service.add_worker(f"w{number}") for number in range(2)]
    dataset = service.register(20)
    return Reading(service, workers, dataset, service.join(dataset, "train"))


def said(service: Service) -> list[str]:
    return [told.text for told in service.instructions if isinstance(told, e.Announce)]


# ---- pause and resume


def test_each_task_of_a_paused_job_is_told_and_those_that_come_later_begin_paused(reading: Reading) -> None:
    assert reading.service.pause("train") == "paused"
    reading.workers.append(reading.service.add_worker("late"))
    assert [reading.service.task(worker).paused for worker in reading.workers] == [True] * 3
    assert reading.service.resume("train") == "running"
    assert [reading.service.task(worker).paused for worker in reading.workers] == [False] * 3


def test_pausing_twice_is_pausing_once_and_tells_who_did_it_first(reading: Reading) -> None:
    reading.service.pause("train")
    assert said(reading.service) == ["job 'train' was paused by anna"]
    before = len(reading.service.records)
    assert reading.service.call(ControlRequest(action="pause", name="train", requested_by="bert")) == "paused"
    assert len(reading.service.records) == before
    assert reading.service.core.state.jobs["train"].paused_by == "anna"


def test_resuming_what_goes_on_changes_nothing(reading: Reading) -> None:
    before = len(reading.service.records)
    assert reading.service.resume("train") == "running"
    assert len(reading.service.records) == before


def test_a_worker_that_was_away_learns_of_a_pause_when_it_is_back(reading: Reading) -> None:
    worker = reading.workers[0]
    reading.service.break_worker(worker)
    reading.service.pause("train")
    assert not reading.service.task(worker).paused
    reading.service.arrive(worker)
    assert reading.service.task(worker).paused


def test_a_pause_outlives_the_dispatcher(reading: Reading) -> None:
    reading.service.pause("train")
    reading.service.restart()
    assert reading.service.core.state.jobs["train"].paused_by == "anna"
    assert reading.service.task(reading.workers[0]).paused


# ---- cancel


def test_each_reader_of_a_cancelled_job_is_told_by_whom_and_its_name_is_free(reading: Reading) -> None:
    other = reading.service.join(reading.dataset, "train")
    assert reading.service.cancel("train") == "cancelled"
    assert [reading.client.cancelled, other.cancelled] == ["anna", "anna"]
    assert said(reading.service) == ["job 'train' was cancelled by anna; 2 readers ended"]
    assert not any(worker.tasks for worker in reading.workers)
    again = reading.service.join(reading.dataset, "train")
    assert again.tasks
    assert not again.cancelled


def test_a_reader_that_was_away_is_told_when_it_is_back_even_if_the_job_was_begun_again(reading: Reading) -> None:
    reading.service.break_client(reading.client)
    reading.service.cancel("train")
    reading.service.join(reading.dataset, "train")
    reading.service.restart(absent=lambda one: one is reading.client)
    reading.service.hear(reading.client)
    assert reading.client.cancelled == "anna"


def test_a_reader_that_was_told_is_forgotten_when_it_leaves_or_falls_silent(reading: Reading) -> None:
    silent = reading.service.join(reading.dataset, "train")
    reading.service.cancel("train")
    reading.service.close(reading.client)
    reading.service.wait(10, lambda: reading.service.keep_alive(silent))
    assert not reading.service.core.state.clients


def test_cancelling_twice_is_cancelling_once(reading: Reading) -> None:
    reading.service.cancel("train")
    before = len(reading.service.records)
    assert reading.service.cancel("train") == "cancelled"
    assert len(reading.service.records) == before


def test_the_dataset_of_a_cancelled_job_is_let_go_in_time(reading: Reading) -> None:
    reading.service.cancel("train")
    reading.service.close(reading.client)
    reading.service.wait(10, reading.service.keep_alive)
    assert not reading.service.core.state.datasets


@pytest.mark.parametrize("consumers", [2, 3])
def test_a_job_whose_rounds_were_cancelled_begins_anew_at_round_0_with_any_number_of_consumers(consumers: int) -> None:
    world = World(2)
    world.add_worker()
    for index in range(2):
        world.join(index)
    for _ in range(30):
        world.everything_moves()
    assert min(len(consumer.took) for consumer in world.consumers.values()) > 5
    world.cancel()
    world.count = consumers
    for index in range(consumers):
        world.join(index)
    world.come_to_rest()
    assert [min(consumer.took) for consumer in world.consumers.values()] == [0] * consumers


def test_what_a_consumer_says_after_its_job_was_cancelled_is_nothing_to_anybody(reading: Reading) -> None:
    dataset = reading.service.register(cardinality=INFINITE_CARDINALITY)
    consumer = reading.service.join(dataset, "rounds", "OFF", trainer_id="consumer 0", num_consumers=1)
    reading.service.cancel("rounds")
    said = ConsumerReport(round=3, begun=True)
    for client in (consumer, reading.client):  # the second one is no consumer at all
        decision = reading.service.handle(ClientReport(client_id=client.client_id, consumer=said))
        assert (decision.error, decision.records) == (None, ())


# ---- workers


def test_a_drained_worker_is_told_to_leave_and_gets_nothing_new(reading: Reading) -> None:
    worker = reading.workers[0]
    reading.service.ask(reading.service.task(worker))
    assert reading.service.order_to_drain(worker) == "draining"
    assert said(reading.service) == ["worker w0 drains by anna"]
    assert reading.service.ask(reading.service.task(worker)).done


def test_a_draining_worker_that_was_away_is_told_again_to_leave(reading: Reading) -> None:
    worker = reading.workers[0]
    reading.service.break_worker(worker)
    reading.service.order_to_drain(worker)
    assert not worker.leaving
    reading.service.arrive(worker)
    assert worker.leaving


def test_a_removed_worker_is_turned_away_and_another_one_takes_over_what_it_had(reading: Reading) -> None:
    service, [worker, other] = reading.service, reading.workers
    task = service.task(worker)
    run = service.ask(task)
    service.consume(task, 1)
    reading.service.remove(worker)
    assert e.DisconnectWorker(worker=worker.uid, reason="worker w0 was removed by anna") in reading.service.instructions
    assert said(service) == ["worker w0 was removed by anna"]
    service.hear(reading.client)
    service.exhaust(other.tasks[task.task_id])
    assert (0, run.first) not in service.read(reading.client), "an element was consumed twice"
    service.exhaust(service.task(other, 0))
    service.read(reading.client)
    service.report(other)
    assert reading.client.finished
    assert not reading.client.losses


def test_asking_a_worker_that_is_gone_to_leave_is_no_error(reading: Reading) -> None:
    worker = reading.workers[0]
    reading.service.stop(worker)
    assert reading.service.order_to_drain(worker) == reading.service.remove(worker) == "gone"


# ---- names


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
def test_a_job_that_there_is_not_is_told_with_those_that_are_like_it(reading: Reading, action: str) -> None:
    with pytest.raises(NotFoundError, match="there is no job 'trian'") as caught:
        reading.service.call(ControlRequest(action=action, name="trian", requested_by="anna"))
    assert caught.value.did == "nothing was changed"
    assert caught.value.hint == "did you mean 'train'? jobs of this service: train"


@pytest.mark.parametrize("action", ["drain", "remove"])
def test_a_worker_that_there_is_not_is_told_with_those_that_there_are(reading: Reading, action: str) -> None:
    with pytest.raises(NotFoundError, match="there is no worker 'w7'") as caught:
        reading.service.call(ControlRequest(action=action, name="w7", requested_by="anna"))
    assert caught.value.hint == "workers of this service: w0 (host:w0), w1 (host:w1)"
