"""Workers that replace others: no pass is produced by both, none by neither, and nothing begun is dropped."""

from __future__ import annotations

import pytest

from tests.dispatcher.model import SimClient, SimWorker
from tests.dispatcher.simulation import Service


def replaced(mode: str, **options: str | int | bool) -> tuple[Service, SimClient, SimWorker, SimWorker]:
    """A service in which a client reads a pass that one worker has begun, and another worker has replaced that one."""
    service = Service()
    old = service.add_worker("old")
    client = service.join(service.register(20), "train", mode, **options)
    service.hold_new_workers()
    new = service.add_worker("new")
    assert not new.tasks, "a worker that is held got a task"
    service.replace(old)
    service.hear(client)
    return service, client, old, new


def workers_of(client: SimClient) -> set[str]:
    return {uid for _, uid in client.tasks.values()}


def test_the_rest_of_a_dynamic_pass_goes_to_the_new_workers() -> None:
    service = Service()
    old = service.add_worker("old")
    client = service.join(service.register(20), "train")
    begun = service.task(old)
    had = service.ask(begun, want=4)
    service.hold_new_workers()
    new = service.add_worker("new")
    service.replace(old)
    assert service.ask(begun).done
    rest = service.task(new)
    service.finish(old, begun)
    service.finish(new, rest)
    assert service.held(rest, 0) == 20 - (had.end - had.first)
    assert not old.tasks, "a replaced worker keeps a task that nobody needs"
    assert not client.losses


def test_a_dynamic_pass_that_the_old_worker_has_not_begun_goes_to_the_new_workers() -> None:
    _, client, old, _ = replaced("DYNAMIC")
    assert not old.tasks
    assert workers_of(client) == {"new"}


@pytest.mark.parametrize("mode, options", [("OFF", {}), ("DATA", {}), ("OFF", {"num_consumers": 1})])
def test_passes_that_cannot_be_shared_stay_with_the_workers_that_began_them(mode: str, options: dict[str, int]) -> None:
    _, client, _, new = replaced(mode, **options)
    assert workers_of(client) == {"old"}
    assert not new.tasks


@pytest.mark.parametrize("mode", ["OFF", "DATA", "DYNAMIC"])
def test_the_next_pass_belongs_to_the_new_workers_alone(mode: str) -> None:
    service, client, _, _ = replaced(mode)
    later = service.join(client.joined.dataset_id, "train", mode, iteration=1)
    assert workers_of(later) == {"new"}


def test_workers_that_were_held_begin_beside_the_others_if_nothing_is_replaced() -> None:
    service = Service()
    old = service.add_worker("old")
    client = service.join(service.register(20), "train", "OFF")
    service.hold_new_workers()
    new = service.add_worker("new")
    service.replace()
    service.hear(client)
    assert old.tasks
    assert new.tasks
    assert service.add_worker("later").tasks


def test_a_restart_of_the_dispatcher_holds_nobody_for_ever() -> None:
    service = Service()
    service.hold_new_workers()
    service.add_worker("new")
    service.restart()
    assert workers_of(service.join(service.register(20), "train")) == {"new"}


@pytest.mark.parametrize("mode, options", [("OFF", {}), ("DATA", {}), ("OFF", {"num_consumers": 1})])
def test_a_pass_whose_old_worker_dies_goes_on_with_the_new_workers(mode: str, options: dict[str, int]) -> None:
    service, client, old, new = replaced(mode, **options)
    service.kill(old)
    service.hear(client)
    assert workers_of(client) == {"new"}
    assert new.tasks


def test_a_replaced_worker_takes_over_no_part_of_a_dead_one() -> None:
    service, client, old, new = replaced("DYNAMIC")
    service.ask(service.task(new), want=4)
    service.kill(new)
    service.hear(client)
    assert not old.tasks
    assert workers_of(client) == {""}
    service.add_worker("other")
    service.hear(client)
    assert workers_of(client) == {"other"}
