"""That the tables' own check sees each kind of disorder, and that the journal alone makes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsnb.dispatcher.invariants import validate
from dsnb.dispatcher.records import JobForgotten
from dsnb.dispatcher.state import State, replay
from tests.dispatcher.simulation import Service


@pytest.fixture
def service() -> Service:
    """Two workers at work on one pass of 20 splits, and a second pass."""
    made = Service()
    for uid in ("w0", "w1"):
        made.add_worker(uid)
    dataset = made.register(20)
    made.join(dataset, "train")
    made.join(dataset, "train", iteration=1)
    for _, task in [(w, task) for w in made.workers.values() for task in w.tasks.values()]:
        made.ask(task)
    return made


def first_task(state: State) -> str:
    return state.iteration("train", 0).tasks[0]


def end_one_and_finish(state: State) -> None:
    state.iteration("train", 0).finished = True


def lose_a_worker(state: State) -> None:
    del state.workers["w0"]


def lose_a_dataset(state: State) -> None:
    state.datasets.clear()


def lose_a_task(state: State) -> None:
    del state.tasks[first_task(state)]


def forget_where_a_task_is(state: State) -> None:
    state.iteration("train", 0).tasks.pop()


def forget_where_a_client_is(state: State) -> None:
    state.iteration("train", 0).clients.clear()


def lose_a_client(state: State) -> None:
    state.clients.clear()


def give_a_worker_two_tasks(state: State) -> None:
    state.tasks[first_task(state)].worker = "w1"


def give_more_than_there_is(state: State) -> None:
    state.iteration("train", 0).providers[0].next = 21


def give_a_split_twice(state: State) -> None:
    other = state.tasks[state.iteration("train", 0).tasks[1]]
    had = state.tasks[first_task(state)].grants[0]
    other.grants[0] = had


@pytest.mark.parametrize(
    "disorder,told",
    [
        (end_one_and_finish, "finished, but a task runs"),
        (lose_a_worker, "a task is neither at work nor halted"),
        (lose_a_dataset, "a job's dataset is unknown"),
        (lose_a_task, "an iteration's task is unknown"),
        (forget_where_a_task_is, "a task is not in its iteration"),
        (forget_where_a_client_is, "a client is not in its place"),
        (lose_a_client, "an iteration's client is unknown"),
        (give_a_worker_two_tasks, "a worker has two tasks in one iteration"),
        (give_more_than_there_is, "more splits were given than there are"),
        (give_a_split_twice, "a split was given twice"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_disorder_is_seen(service: Service, disorder: Callable[[State], None], told: str) -> None:
    validate(service.core.state)
    disorder(service.core.state)
    with pytest.raises(AssertionError, match=told):
        validate(service.core.state)


def test_the_journal_leads_to_the_same_state_byte_for_byte(service: Service) -> None:
    assert replay(service.records).export() == service.core.state.export()
    assert replay(service.records[:-1]).export() != service.core.state.export()


def test_a_replayed_state_shares_nothing_with_the_live_one(service: Service) -> None:
    before = service.core.state.export()
    replay(service.records).apply(JobForgotten(name="train"))
    assert service.core.state.export() == before


def test_numbers_are_never_used_again(service: Service) -> None:
    clients = [client.client_id for client in service.clients.values()]
    for client in list(service.clients.values()):
        service.close(client)
    service.forget("train")
    dataset = service.register(20)
    tasks = {record.task_id for record in service.records if type(record).__name__ == "TaskCreated"}
    new = service.join(dataset, "train")
    assert new.client_id not in clients
    assert not new.tasks.keys() & tasks
