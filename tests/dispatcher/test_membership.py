from __future__ import annotations

from dataclasses import replace

import pytest

from dsnb.dispatcher import events as e
from dsnb.errors import NotFoundError
from dsnb.wire.messages import ClientRelease, ClientReport, EndRequest, TaskReport, WorkerReport
from tests.dispatcher.model import DispatcherDied, SimClient, SimWorker
from tests.dispatcher.simulation import CONFIG, INTERVAL, Service

WORKER_S = CONFIG.worker_timeout_ms / 1000
CLIENT_S = CONFIG.client_timeout_ms / 1000
RECONNECT_S = CONFIG.reconnect_ms / 1000
TASK_GC_S = CONFIG.task_gc_timeout_ms / 1000


def at_work(workers: int = 1, mode: str = "DYNAMIC") -> tuple[Service, SimClient, list[SimWorker]]:
    """A service in which one client reads a pass of the job "train" over 20 splits."""
    service = Service()
    there = [service.add_worker(f"w{number}") for number in range(workers)]
    return service, service.join(service.register(20), "train", mode), there


def announced(service: Service) -> list[str]:
    """What the last event had the dispatcher tell people."""
    return [told.text for told in service.instructions if isinstance(told, e.Announce)]


# ---- workers come and go


def test_a_worker_that_comes_later_gets_a_task_in_each_pass_that_still_runs() -> None:
    service, client, [first] = at_work()
    other = service.join(service.register(5), "other")
    service.finish(first, service.task(first))
    assert other.finished
    late = service.add_worker("late")
    assert list(late.tasks) == [task for task, (_, uid) in client.tasks.items() if uid == "late"]
    assert len(client.tasks) == 2
    assert "late" not in {uid for _, uid in other.tasks.values()}


def test_a_worker_is_lost_after_its_time_and_with_it_its_tasks() -> None:
    service, client, [silent, alive] = at_work(2)
    service.ask(service.task(silent), want=3)
    service.wait(WORKER_S, lambda: service.keep_alive(silent))
    assert silent.uid in service.workers
    service.keep_alive(silent)
    service.tick()
    assert silent.uid not in service.workers
    assert announced(service) == ["worker w0 was lost"]
    service.hear(client)
    assert service.announced[-1] == "job 'train': worker w1 takes over the part of worker w0"
    assert {uid for _, uid in client.tasks.values()} == {alive.uid}


def test_a_worker_whose_connection_broke_is_lost_sooner() -> None:
    service, client, [worker] = at_work()
    service.break_worker(worker)
    service.wait(RECONNECT_S, service.keep_alive)
    assert worker.uid in service.workers
    service.tick()
    assert worker.uid not in service.workers
    assert announced(service) == ["worker w0 was lost"]
    assert not client.losses


def test_a_client_learns_whether_a_worker_runs_that_it_cannot_reach() -> None:
    service, client, [worker, other] = at_work(2)
    unreachable = ClientReport(client_id=client.client_id, unreachable_workers=(worker.uid,))

    def tell() -> None:
        client.silence = 0.0
        service.call(unreachable)

    def runs(reports: SimWorker) -> bool:
        tell()
        service.report(reports)
        return e.NotifyRunning(client_id=client.client_id, worker=worker.uid) in service.instructions

    assert not runs(worker), "it may have died since it sent this: the dispatcher may have been suspended"
    service.wait(WORKER_S - INTERVAL, tell)
    assert not runs(other)
    assert runs(worker)


def test_nobody_is_told_of_a_worker_that_was_reached_after_all() -> None:
    service, client, [worker] = at_work()
    service.call(ClientReport(client_id=client.client_id, unreachable_workers=(worker.uid,)))
    for _ in range(8):
        service.wait(1.0, service.keep_alive)
        service.report(worker)
        assert not any(isinstance(told, e.NotifyRunning) for told in service.instructions)


def test_a_worker_that_comes_back_in_time_loses_nothing() -> None:
    service, client, [worker] = at_work()
    task = service.task(worker)
    service.ask(task)
    service.break_worker(worker)
    service.wait(RECONNECT_S)
    service.arrive(worker)
    service.wait(WORKER_S, service.keep_alive)
    assert service.task(worker) is task
    assert not client.losses


def test_a_worker_that_comes_back_hears_of_what_was_ordered_and_dropped_meanwhile() -> None:
    service, client, [worker] = at_work()
    service.break_worker(worker)
    service.close(client)
    service.forget("train")
    service.join(service.register(7), "new")
    old = list(worker.tasks)
    service.arrive(worker)
    assert worker.tasks
    assert not worker.tasks.keys() & set(old)


def test_a_lost_worker_is_refused_until_it_registers_again_and_then_begins_anew() -> None:
    service, client, [worker] = at_work()
    task = service.task(worker)
    service.ask(task)
    service.break_worker(worker)
    service.wait(RECONNECT_S + INTERVAL, service.keep_alive)
    with pytest.raises(NotFoundError, match="the worker w0 is unknown"):
        service.call(WorkerReport(uid="w0", ended=(task.task_id,)))
    service.arrive(worker)
    again = worker.tasks[task.task_id]
    assert (again.incarnation, task.incarnation) == (2, 1)
    assert service.ask(again).first == 0
    assert service.read(client) == [(0, split) for split in range(4)]


def test_a_worker_that_gets_a_task_back_does_not_end_it_with_a_report_of_the_earlier_incarnation() -> None:
    """A client kept elements when it left the worker, so they count as consumed there; it may yet be lost."""
    service, _, [worker] = at_work()
    task = service.task(worker)
    service.ask(task)
    service.break_worker(worker)
    service.wait(RECONNECT_S + INTERVAL, service.keep_alive)
    service.arrive(worker)
    assert worker.tasks[task.task_id].incarnation == 2
    earlier = TaskReport(task_id=task.task_id, incarnation=1, state="ended")
    service.call(WorkerReport(uid="w0", ended=(task.task_id,), tasks=(earlier,)))
    assert not service.core.state.tasks[task.task_id].ended


def test_a_worker_that_says_goodbye_is_no_warning() -> None:
    service, _, [worker] = at_work()
    service.stop(worker)
    assert announced(service) == ["worker w0 was stopped"]


def test_the_pass_goes_on_without_a_lost_worker_and_ends() -> None:
    service, client, [lost, alive] = at_work(2)
    service.finish(alive, service.task(alive))
    assert not client.finished
    service.stop(lost)
    service.hear(client)
    service.finish(alive, service.task(alive))
    assert client.finished


def test_a_pass_without_workers_waits_for_one() -> None:
    service, client, [worker] = at_work()
    service.stop(worker)
    assert not client.finished
    service.hear(client)
    new = service.add_worker("new")
    for task in new.tasks.values():
        service.finish(new, task)
    assert client.finished


def test_what_a_lost_reader_consumed_is_known_also_if_the_next_worker_dies_before_it_reports() -> None:
    service, first, [worker] = at_work()
    second = service.join(first.joined.dataset_id, "train")
    task = service.task(worker)
    service.ask(task)
    assert len(service.read(first)) == 4
    service.kill(worker)
    successor = service.add_worker("successor")
    service.hear(first)
    service.hear(second)
    service.kill(successor)
    service.kill_client(first)
    last = service.add_worker("last")
    service.wait(RECONNECT_S + INTERVAL, service.keep_alive)
    service.exhaust(last.tasks[task.task_id])
    assert service.read(second)[0] == (0, 4)


# ---- a worker that is started again at its address


def test_a_worker_that_is_started_again_keeps_its_name_and_its_tasks_begin_again() -> None:
    service, client, [worker] = at_work(mode="OFF")
    [(task_id, (incarnation, _))] = client.tasks.items()
    service.add_worker("again", worker.address)
    assert service.announced[-1] == "worker w0 came back"
    service.hear(client)
    assert client.tasks == {task_id: (incarnation + 2, "again")}  # one was halted and never ran
    assert [loss.reason for loss in client.losses] == ["was started again"]


def test_a_reader_hears_of_the_loss_before_it_hears_of_the_new_incarnation() -> None:
    service, client, [worker] = at_work(mode="OFF")
    service.add_worker("again", worker.address)
    service.call(ClientReport(client_id=client.client_id, holdings=client.holdings()))
    told = [type(i) for i in service.instructions if isinstance(i, e.NotifyLoss | e.NotifyClients)]
    assert told == [e.NotifyLoss, e.NotifyClients]


def test_what_a_reader_consumed_before_a_task_began_again_does_not_count_as_consumed_since() -> None:
    service = Service()
    worker = service.add_worker("w")
    first, second = (service.join(service.countable(20), "train", "OFF") for _ in range(2))
    service.make(service.task(worker), 3)
    assert len(service.read(first)) == 3
    worker = service.add_worker("again", worker.address)
    service.hear(first)
    service.hear(second)
    assert [(loss.elements, loss.restarts) for loss in second.losses] == [(17, True)]
    service.close(first)  # it has yet to see that the task has begun again
    service.add_worker("and again", worker.address)
    service.hear(second)
    assert [loss.elements for loss in second.losses] == [17, 20]


def test_a_pass_that_was_read_to_its_end_does_not_begin_again_with_its_worker() -> None:
    service, client, [read, _slow] = at_work(2, mode="OFF")
    service.finish(read, service.task(read))
    again = service.add_worker("again", read.address)
    assert not again.tasks, "the readers would get the whole pass twice"
    assert not client.losses
    assert {uid for _, uid in client.tasks.values()} == {"w1"}


def test_a_worker_whose_part_of_a_dynamic_pass_is_read_helps_with_the_rest_when_it_is_started_again() -> None:
    service, client, [read, slow] = at_work(2)
    early = service.task(read)
    service.ask(early)
    early.finish()  # as with `take`
    service.consume(early)
    service.report(read)
    again = service.add_worker("again", read.address)
    service.finish(again, service.task(again))
    service.finish(slow, service.task(slow))
    assert client.finished
    assert service.splits(client, 0, 0) == list(range(20))


def test_a_client_of_a_finished_pass_is_told_when_one_of_its_workers_is_another() -> None:
    service, client, [worker] = at_work()
    service.finish(worker, service.task(worker))
    assert client.finished
    service.add_worker("again", worker.address)
    assert client.finished
    assert not client.tasks


# ---- the clock


@pytest.mark.parametrize("seconds", [5, 60, 3600])
def test_a_late_tick_alone_loses_nobody(seconds: int) -> None:
    service, client, workers = at_work(2)
    for _ in range(3):
        service.tick(after=float(seconds))
        service.keep_alive()
    assert [*service.workers.values()] == workers
    assert [*service.clients.values()] == [client]


def test_after_a_late_tick_the_silent_still_have_only_the_time_that_they_had() -> None:
    service, _, [silent, _] = at_work(2)
    service.wait(WORKER_S - 1, lambda: service.keep_alive(silent))
    service.tick(after=600.0)
    service.keep_alive(silent)
    assert silent.uid in service.workers
    service.wait(1, lambda: service.keep_alive(silent))
    assert silent.uid not in service.workers


def test_a_connection_that_broke_while_the_dispatcher_stood_still_has_no_more_time_than_another() -> None:
    service, _, [gone, _] = at_work(2)
    service.now += 600.0  # the dispatcher learns of the break before its clock ticks again
    service.break_worker(gone)
    service.tick(after=0.0)
    service.wait(RECONNECT_S, service.keep_alive)
    assert gone.uid in service.core.state.workers
    service.tick()
    assert gone.uid not in service.core.state.workers


def test_before_the_late_tick_no_worker_counts_as_overdue() -> None:
    service, client, [gone, alive] = at_work(2)
    service.now += 600.0
    service.kill(gone)
    service.hear(client)
    assert {uid for _, uid in client.tasks.values()} == {alive.uid}


def test_a_standstill_moves_no_deadline_of_others() -> None:
    """With thousands of workers, moving all deadlines at each event took far longer than the events."""
    service, _, [reporting, other] = at_work(2)
    deadlines = service.core.transient.worker_deadlines
    before = dict(deadlines)
    for _ in range(3):
        service.now += 600.0
        service.report(reporting)
    assert deadlines[other.uid] == before[other.uid]
    service.tick(after=0.0)
    assert other.uid in service.core.state.workers


# ---- clients


def test_a_client_is_gone_after_its_time_and_its_workers_hear_of_it() -> None:
    service, client, [worker] = at_work()
    other = service.join(service.register(20), "train")
    service.wait(CLIENT_S, lambda: service.keep_alive(client))
    assert client.client_id in service.clients
    service.tick()
    released = [i for i in service.instructions if isinstance(i, e.ReleaseClient)]
    assert released == [
        e.ReleaseClient(worker=worker.uid, release=ClientRelease(client_id=client.client_id, number=1, died=True))
    ]
    assert [*service.clients.values()] == [other]


def test_a_client_that_was_given_up_is_told_what_to_do() -> None:
    service, client, _ = at_work()
    service.wait(CLIENT_S + INTERVAL, lambda: service.keep_alive(client))
    for event in (
        ClientReport(client_id=client.client_id),
        EndRequest(client_id=client.client_id, ended=()),
    ):
        with pytest.raises(NotFoundError, match=f"Unknown iteration client id {client.client_id}") as caught:
            service.call(event)
        assert "client_timeout_ms" in caught.value.hint


def test_a_pass_is_kept_for_a_while_after_its_last_reader_and_then_freed() -> None:
    service, client, [worker] = at_work()
    task = service.task(worker)
    service.ask(task)
    service.close(client)
    service.wait(TASK_GC_S - INTERVAL, service.keep_alive)
    back = service.join(service.register(20), "train")
    assert list(back.tasks) == [task.task_id], "the pass was not there any more"
    service.close(back)
    service.wait(TASK_GC_S, service.keep_alive)
    assert not worker.tasks
    service.join(service.register(20), "train")
    assert service.ask(service.task(worker)).first == 0, "the new pass is not whole"


def test_what_a_lost_reader_left_is_kept_as_long_as_was_said_also_if_it_cannot_be_made_again() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.register(20, inexact_reason="it draws at random"), "train")
    service.ask(service.task(worker))
    service.wait(CLIENT_S + INTERVAL, lambda: service.keep_alive(client))
    assert client.client_id not in service.core.state.clients
    service.wait(CONFIG.job_gc_timeout_ms / 1000 - 2 * INTERVAL, service.keep_alive)
    assert worker.tasks, "its elements are gone before their time"
    service.wait(CLIENT_S + TASK_GC_S, service.keep_alive)
    assert not worker.tasks


def test_what_a_lost_reader_left_is_kept_also_if_another_one_had_been_told_that_it_had_reached_the_end() -> None:
    service, first, [worker] = at_work()
    second, task = service.join(first.joined.dataset_id, "train"), service.task(worker)
    service.exhaust(task)
    service.open(second)
    service.send(second, second.holds[task.task_id], 3)
    second.receive(3)
    while service.read(first):
        pass
    assert service.see_end(first)
    service.wait(CLIENT_S + INTERVAL, lambda: service.keep_alive(second))
    service.close(first)
    [text] = announced(service)
    assert text == (
        "pass 1 of job 'train' has no reader left: what its readers had not consumed waits for another one for "
        "6 seconds"
    )
    service.wait(TASK_GC_S + INTERVAL, service.keep_alive)
    third = service.join(first.joined.dataset_id, "train")
    service.exhaust(service.task(worker))
    assert service.read(third) == [(0, 0), (0, 1), (0, 2)]


def test_a_worker_that_is_to_leave_does_not_wait_for_a_reader_that_was_lost() -> None:
    service = Service()
    worker = service.add_worker("w")
    service.join(service.register(20, inexact_reason="it draws at random"), "train")
    task = service.task(worker)
    service.ask(task, want=9)
    service.consume(task)
    service.report(worker)
    service.ask(task, want=2)
    service.drain(worker)
    service.wait(CLIENT_S + TASK_GC_S + INTERVAL, lambda: service.keep_alive(*service.clients.values()))
    assert not worker.tasks
    service.join(service.register(20), "train")
    [loss] = service.core.state.iteration("train", 0).losses
    assert (loss.reason, loss.splits) == ("was drained", 2)


def test_a_dynamic_pass_is_kept_where_that_was_asked_for() -> None:
    service = Service(replace(CONFIG, gc_dynamic_sharding_jobs=False, job_gc_timeout_ms=-1))
    worker = service.add_worker("w")
    service.close(service.join(service.register(20), "kept", "DYNAMIC"))
    service.close(service.join(service.register(20), "freed", "OFF"))
    service.wait(10 * TASK_GC_S, service.keep_alive)
    assert [service.core.state.tasks[task].job for task in worker.tasks] == ["kept"]


def test_an_anonymous_job_goes_with_its_client() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.register(20))
    assert worker.tasks
    service.close(client)
    assert not worker.tasks
    assert not service.core.state.jobs


def test_the_record_of_a_job_stays_until_nobody_has_read_it_for_its_time() -> None:
    service, client, [worker] = at_work()
    service.finish(worker, service.task(worker))
    service.close(client)
    service.wait(CONFIG.job_gc_timeout_ms / 1000 - INTERVAL, service.keep_alive)
    again = service.join(service.register(20), "train")
    assert again.finished, "a pass that was read to its end is empty for whoever asks for it again"
    service.close(again)
    service.wait(CONFIG.job_gc_timeout_ms / 1000, service.keep_alive)
    assert not service.join(service.register(20), "train").finished


def test_a_service_that_keeps_jobs_for_ever_does() -> None:
    service = Service(replace(CONFIG, job_gc_timeout_ms=-1))
    worker = service.add_worker("w")
    client = service.join(service.register(20), "train")
    service.finish(worker, service.task(worker))
    service.close(client)
    service.wait(300.0, service.keep_alive)
    assert service.join(service.register(20), "train").finished


def test_a_dispatcher_that_came_back_collects_what_nobody_reads() -> None:
    service, client, [worker] = at_work()
    service.close(client)
    service.restart()
    service.wait(CONFIG.job_gc_timeout_ms / 1000, service.keep_alive)
    assert not worker.tasks
    assert not service.core.state.jobs


def test_what_is_done_outlives_the_dispatcher_so_that_no_more_is_told_as_lost_than_is() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.register(20, inexact_reason="it draws at random"))
    task = service.task(worker)
    service.ask(task, want=9)
    service.consume(task)
    service.report(worker)
    service.ask(task, want=2)
    service.restart(absent=lambda one: one is worker)
    service.wait(5.0, lambda: service.keep_alive(worker))
    assert worker.uid not in service.workers
    assert [loss.splits for loss in client.losses] == [2]


def test_a_reader_hears_of_a_loss_that_the_dispatcher_could_not_tell_any_more() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.register(20), mode="OFF")
    service.stop(worker)
    service.dies = True
    with pytest.raises(DispatcherDied):
        service.hear(client)
    assert client.losses == []
    service.restart()
    assert [(loss.worker, loss.reason) for loss in client.losses] == [("w0", "was stopped")]


def test_a_worker_that_serves_a_client_who_is_gone_is_told() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.register(20))
    service.call(WorkerReport(uid=worker.uid, tasks=(TaskReport(clients=(client.client_id,)),)))
    assert service.instructions == []
    service.call(WorkerReport(uid=worker.uid, tasks=(TaskReport(clients=(client.client_id, "2999")),)))
    assert service.instructions == [
        e.ReleaseClient(worker=worker.uid, release=ClientRelease(client_id="2999", number=1, died=True))
    ]


@pytest.mark.parametrize("gone", [False, True], ids=["tasks-remain", "tasks-are-gone"])
@pytest.mark.parametrize("unheard", [0, 1, 3])
def test_what_a_lost_client_consumed_unheard_is_announced_though_its_pass_has_ended(unheard: int, gone: bool) -> None:
    service, client, [worker] = at_work()
    other, task = service.join(client.joined.dataset_id, "train"), service.task(worker)
    service.ask(task, want=8)
    service.read(client, 5)
    service.send(client, client.holds[task.task_id], 3)
    client.receive(3)
    service.eat(client, unheard)
    service.suspend(client)
    service.wait(2 * CLIENT_S, lambda: service.keep_alive(client))
    service.report(worker)
    service.read(other)
    service.exhaust(task)
    service.read(other)
    service.report(worker)
    assert service.see_end(other)
    service.close(other)
    if gone:
        service.wait(2 * TASK_GC_S, lambda: service.keep_alive(client))
    assert bool(service.core.state.tasks) is not gone
    service.wake(client)
    counted = {1: "1 element", 3: "3 elements"}
    text = (
        f"job 'train': {counted.get(unheard)} reached two readers; one of them came back after it was counted as lost"
    )
    assert [told for told in announced(service) if "two readers" in told] == ([text] if unheard else [])
