"""Which pass of finite data a trainer joins, and when that is over."""

from __future__ import annotations

import pytest

from dsnb.dispatcher import events as e
from dsnb.wire.messages import (
    ClosedIteration,
    EndedTask,
    EndRequest,
    JoinedClient,
    JoinReply,
    JoinRequest,
    LinkReport,
    TaskReport,
    WorkerReport,
)
from tests.dispatcher.simulation import CONFIG, Service


class Sharing:
    """A cached job of finite data on two workers, and trainers that read it."""

    def __init__(self, cardinality: int = 100) -> None:
        self.service = Service()
        self.service.add_worker("v")
        self.service.add_worker("w")
        self.dataset = self.service.register(cardinality=cardinality)

    def join(self, trainer: str, *, whole: bool = True) -> str:
        client = self.service.join(
            self.dataset, "job", mode="OFF", cached=True, trainer_id=trainer, complete_only=whole
        )
        return client.client_id

    def number(self, client: str) -> int:
        return self.service.core.state.clients[client].iteration

    def passes(self) -> dict[int, bool]:
        """All passes, and whether each is finished."""
        return {n: it.finished for n, it in self.service.core.state.jobs["job"].iterations.items()}

    def tasks(self, client: str) -> tuple[str, ...]:
        return tuple(self.service.core.state.iteration("job", self.number(client)).tasks)

    def ended(self, client: str) -> tuple[EndedTask, ...]:
        tasks = self.service.core.state.tasks
        return tuple(EndedTask(task_id=task, incarnation=tasks[task].incarnation) for task in self.tasks(client))

    def send_everything(self, client: str) -> None:
        """The workers say that they have nothing more for a client."""
        core = self.service.core
        for task in map(core.state.tasks.__getitem__, self.tasks(client)):
            link = LinkReport(client_id=client, at_end=True)
            report = TaskReport(task_id=task.task_id, incarnation=task.incarnation, links=(link,))
            released = core.transient.sent_releases.get(task.worker, 0)
            self.service.call(WorkerReport(uid=task.worker, tasks=(report,), last_release=released))

    def end(self, client: str) -> bool:
        self.send_everything(client)
        return self.ends(client)

    def ends(self, client: str) -> bool:
        """Whether the dispatcher confirms the end to a client that has read all tasks."""
        return bool(self.service.call(EndRequest(client_id=client, ended=self.ended(client))).finished)

    def leave(self, client: str) -> None:
        self.service.close(self.service.clients[client])

    def lose_beginning(self, client: str) -> None:
        """A worker asks to let the first elements of a client's pass go."""
        task_id = self.tasks(client)[0]
        task = self.service.core.state.tasks[task_id]
        report = TaskReport(task_id=task_id, incarnation=task.incarnation, closing=True)
        self.service.call(WorkerReport(uid=task.worker, tasks=(report,)))


def test_trainers_join_the_pass_that_is_whole() -> None:
    job = Sharing()
    assert [job.number(job.join(name)) for name in "abc"] == [0, 0, 0]


def test_who_wants_everything_begins_the_next_pass_when_something_is_gone() -> None:
    job = Sharing()
    first = job.join("a")
    job.lose_beginning(first)
    assert job.number(job.join("b")) == 1
    assert job.number(job.join("c", whole=False)) == 1
    assert job.number(job.join("d")) == 1
    assert job.passes() == {0: False, 1: False}


def test_who_wants_everything_does_not_join_a_pass_of_which_a_part_was_given_up() -> None:
    job = Sharing()
    first = job.join("a")
    job.service.stop(job.service.workers["v"])
    job.service.hear(job.service.clients[first])
    assert [loss.worker for loss in job.service.clients[first].losses] == ["w0"]
    assert job.number(job.join("b")) == 1
    assert job.number(job.join("a")) == 0


def test_a_trainer_that_was_away_learns_what_was_lost_meanwhile() -> None:
    job = Sharing()
    service = job.service
    away, here = (service.clients[job.join(name)] for name in ("away", "here"))
    service.suspend(away)
    service.wait(2 * CONFIG.client_timeout_ms / 1000, service.keep_alive)
    assert away.client_id not in service.clients
    service.stop(service.workers["v"])
    service.hear(here)
    assert [text for text in service.announced if "did not reach trainer 'away'" in text]
    assert {loss.trainer_id for loss in service.wake(away).losses} == {"away", "here"}


def test_the_worker_is_told_who_was_let_in_and_wants_everything() -> None:
    job = Sharing()
    wants, _, late = job.join("a"), job.join("b", whole=False), job.join("c")
    task_id = job.tasks(wants)[0]
    job.lose_beginning(wants)
    [order] = [one for one in job.service.instructions if isinstance(one, e.ConfirmClosed)]
    joined = (JoinedClient(client_id=wants, trainer_id="a"), JoinedClient(client_id=late, trainer_id="c"))
    assert order.closed == ClosedIteration(task_id=task_id, incarnation=1, clients=joined)


def test_who_skips_joins_whatever_is_read() -> None:
    job = Sharing()
    job.lose_beginning(job.join("a"))
    assert job.number(job.join("b", whole=False)) == 0


def test_who_comes_back_goes_on_in_its_pass() -> None:
    job = Sharing()
    first, other = job.join("a"), job.join("b")
    job.lose_beginning(first)
    job.leave(first)
    assert job.number(job.join("a")) == 0
    assert job.number(other) == 0


def test_a_pass_is_over_when_each_of_its_trainers_has_had_it() -> None:
    job = Sharing()
    fast, slow = job.join("fast"), job.join("slow")
    assert job.end(fast)
    job.leave(fast)
    assert job.passes() == {0: False}
    again = job.join("fast")
    assert job.number(again) == 1
    assert job.end(slow)
    assert job.passes() == {0: True, 1: False}
    job.leave(slow)
    assert job.number(job.join("slow")) == 1


def test_who_leaves_in_the_middle_does_not_keep_a_pass() -> None:
    job = Sharing()
    fast, slow = job.join("fast"), job.join("slow")
    assert job.end(fast)
    job.leave(slow)
    assert job.passes() == {0: True}


def test_a_pass_waits_for_a_trainer_whose_reader_was_lost_and_not_for_one_that_left() -> None:
    job = Sharing()
    fast, slow = job.join("fast"), job.join("slow")
    job.service.kill_client(job.service.clients[slow])
    job.service.wait(5.0, job.service.keep_alive)
    assert slow not in job.service.core.state.clients
    assert job.end(fast)
    job.leave(fast)
    assert job.passes() == {0: False}
    again = job.join("slow")
    assert job.number(again) == 0, "the rest is for it"
    assert job.end(again)
    assert job.passes() == {0: True}


def test_the_end_waits_for_what_a_lost_reader_of_the_same_trainer_had() -> None:
    """The worker may have sent its successor the end before it took the elements back."""
    job = Sharing()
    lost, _ = job.join("a"), job.join("b")  # with another trainer, the tasks stay where they are
    job.service.kill_client(job.service.clients[lost])
    job.service.wait(5.0, job.service.keep_alive)
    again = job.join("a")
    assert not job.ends(again), "before the workers have said that they have nothing more for it"
    assert job.end(again)


def test_a_part_is_made_again_from_where_a_trainer_is_whose_reader_was_lost() -> None:
    service = Service()
    v = service.add_worker("v")
    how = {"job_name": "job", "cached": True, "complete_only": True}
    here = service.join(service.register(20), trainer_id="here", **how)
    task = service.task(v)
    service.ask(task, want=8)
    service.consume(task)
    service.report(v)
    known = service.core.state.tasks[task.task_id]
    assert known.resume_position is not None
    assert known.resume_position.index > 0
    late = service.join(service.register(20), trainer_id="late", **how)
    service.kill_client(late)
    service.wait(5.0, service.keep_alive)
    service.add_worker("w")
    service.stop(v)
    service.hear(here)
    assert known.takeover_position is not None
    assert known.takeover_position.first_index == 0, "the other trainer has had nothing yet"


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_evicted_while_a_trainer_was_away_does_not_count_as_consumed(restarts: bool) -> None:
    service = Service()
    v = service.add_worker("v")
    here = service.join(service.register(20), "job", trainer_id="here", cached=True)
    away = service.join(service.register(20), "job", trainer_id="away", cached=True)
    task = service.task(v)
    service.ask(task, want=2)
    service.consume(task)
    service.kill_client(away)
    service.wait(5.0, service.keep_alive)
    service.report(v)
    task.window.close_to_new_trainers([])
    task.window.capacity = 3
    for _ in range(4):
        service.ask(task, want=1)
        service.consume(task)
    service.report(v)
    evicted = task.window.base - 2
    assert evicted > 0
    service.add_worker("w")
    if restarts:
        service.restart(absent=lambda one: one is v)
        service.wait(5.0, lambda: service.keep_alive(v))
    else:
        service.stop(v)
    service.hear(here)
    begin = service.core.state.tasks[task.task_id].takeover_position
    assert begin is not None
    assert begin.first_index == 2 + evicted, "no worker has what was evicted, so nobody waits for it"
    offsets = {position.trainer_id: position.offset for position in begin.trainers}
    assert offsets["away"] == 2


def test_what_a_worker_that_leaves_has_for_a_lost_trainer_is_handed_over() -> None:
    service = Service()
    v = service.add_worker("v")
    how = {"job_name": "job", "trainer_id": "a", "cached": True, "complete_only": True}
    client = service.join(service.register(20), **how)
    task = service.task(v)
    service.ask(task, want=8)
    service.consume(task, 2)
    service.report(v)
    service.drain(v)
    assert service.ask(task).done, "a worker that is to leave gets no more"
    task.finish()
    service.kill_client(client)
    service.wait(5.0, service.keep_alive)
    v.obey()
    service.report(v)
    assert not v.tasks, "it waits for a reader that may never come"
    w = service.add_worker("w")
    service.join(service.register(20), **how)
    assert service.core.state.tasks[task.task_id].worker == w.uid


def test_what_one_reader_of_a_trainer_has_when_another_comes_to_the_end_is_not_lost_with_it() -> None:
    job = Sharing()
    first, second = job.join("a"), job.join("a")
    assert job.end(second), "the rest is on its way to the first"
    job.leave(second)
    job.service.kill_client(job.service.clients[first])
    job.service.wait(5.0, job.service.keep_alive)
    assert job.passes() == {0: False}
    assert job.number(job.join("a")) == 0


def test_one_who_has_not_had_all_tasks_has_not_ended() -> None:
    job = Sharing()
    client = job.join("a")
    assert not job.service.call(EndRequest(client_id=client, ended=job.ended(client)[:1])).finished
    assert job.passes() == {0: False}


def test_a_worker_does_not_end_a_pass_that_others_may_join() -> None:
    job = Sharing()
    client = job.join("a")
    job.service.call(WorkerReport(uid="v", ended=job.tasks(client)))
    job.service.call(WorkerReport(uid="w", ended=job.tasks(client)))
    assert job.passes() == {0: False}
    assert job.number(job.join("b")) == 0


def test_endless_data_are_one_pass_whatever_is_gone() -> None:
    job = Sharing(cardinality=-1)
    job.lose_beginning(job.join("a"))
    assert job.number(job.join("b")) == 0


def test_what_was_decided_is_in_the_journal() -> None:
    job = Sharing()
    fast, slow = job.join("fast"), job.join("slow")
    job.lose_beginning(slow)
    job.end(fast)
    iteration = job.service.core.state.iteration("job", 0)
    assert (iteration.trainers, iteration.ended_trainers, iteration.closed) == (["fast", "slow"], ["fast"], True)


def test_a_trainer_is_told_that_it_returns_only_if_it_has_left() -> None:
    job = Sharing()

    def join() -> JoinReply:
        request = JoinRequest(
            dataset_id=job.dataset, job_name="job", mode="OFF", cached=True, trainer_id="a", complete_only=True
        )
        reply = job.service.call(request)
        assert isinstance(reply, JoinReply)
        return reply

    first, second = join(), join()
    assert (first.returned, second.returned) == (False, False), "it is new, and its first client is still there"
    for client in first, second:
        job.leave(client.client_id)
    assert join().returned
