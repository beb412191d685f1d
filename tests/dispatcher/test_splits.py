from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.handlers.orders import requested_task_order
from dsnb.dispatcher.state import replay
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.wire.messages import ClientReport, EndRequest, SplitGrant, SplitsReply, SplitsRequest, TaskReport
from tests.dispatcher.actors import Pipeline
from tests.dispatcher.model import SimClient, SimTask, SimWorker
from tests.dispatcher.simulation import CONFIG, Service


def reading(
    *counts: int, workers: int = 1, **changes: Any
) -> tuple[Service, SimClient, list[tuple[SimWorker, SimTask]]]:
    """A service in which one client reads a pass over sources of these lengths."""
    service = Service()
    there = [service.add_worker(f"w{number}") for number in range(workers)]
    client = service.join(service.register(*counts, **changes))
    return service, client, [(worker, service.task(worker)) for worker in there]


def asked(task_id: str, provider: int = 0, repetition: int = 0, cursor: int = 0) -> SplitsRequest:
    return SplitsRequest(
        task_id=task_id, incarnation=1, provider=provider, repetition=repetition, cursor=cursor, want=4
    )


def run_of(answer: SplitsReply) -> tuple[int, int]:
    assert not answer.done
    return answer.first, answer.end


def test_splits_are_given_in_order_and_each_once() -> None:
    service, client, [(worker, task)] = reading(10)
    service.finish(worker, task)
    assert service.splits(client, 0, 0) == list(range(10))
    assert client.finished


def test_an_answer_is_half_a_share_of_what_is_left_so_that_nobody_sits_on_anothers_work() -> None:
    service, _, [(_, mine), (_, its)] = reading(100, workers=2)
    assert run_of(service.ask(mine, want=1000)) == (0, 25)
    assert run_of(service.ask(its, want=1000)) == (25, 43)
    assert run_of(service.ask(mine, want=3)) == (43, 46)


def test_an_answer_has_at_least_one_split_while_there_are_any() -> None:
    service, _, [(_, mine), (_, its)] = reading(3, workers=2)
    assert [run_of(service.ask(task, want=0)) for task in (mine, its, mine)] == [(0, 1), (1, 2), (2, 3)]
    assert service.ask(its).done


def test_the_same_question_gets_the_same_answer_also_after_the_dispatcher_died() -> None:
    service, _, [(_, mine), (_, its)] = reading(20, workers=2)
    first = service.ask(mine)
    service.ask(its)
    service.ask_again(mine)
    service.restart()
    service.ask_again(mine)
    service.ask_again(its)
    assert run_of(service.ask(mine)) != run_of(first)


def test_the_end_of_a_repetition_is_told_as_often_as_it_is_asked_for() -> None:
    service, _, [(_, task)] = reading(1)
    service.ask(task)
    assert service.ask(task).done
    service.ask_again(task)
    service.restart()
    service.ask_again(task)


def test_an_old_question_gives_nothing_away() -> None:
    service, _, [(_, task)] = reading(20)
    for _ in range(3):
        service.ask(task, want=2)
    with pytest.raises(FailedPreconditionError, match="requested splits from 0 on, but had 6"):
        service.call(asked(task.task_id, cursor=0))


def test_a_question_ahead_of_its_task_is_refused() -> None:
    service, _, [(_, task)] = reading(20)
    with pytest.raises(FailedPreconditionError, match="requested splits from 7 on, but had 0"):
        service.call(asked(task.task_id, cursor=7))


def test_an_unknown_task_or_provider_is_refused() -> None:
    service, _, [(_, task)] = reading(20)
    with pytest.raises(NotFoundError, match="the task nobody is unknown"):
        service.call(asked("nobody"))
    for provider in (-1, 1):
        with pytest.raises(InvalidArgumentError, match=f"has no split provider {provider}"):
            service.call(asked(task.task_id, provider=provider))


def test_an_empty_source_is_over_at_once() -> None:
    service, _, [(_, task)] = reading(0)
    assert service.ask(task).done
    assert service.ask(task).done


def test_a_repeat_inside_the_pipeline_gives_all_splits_again() -> None:
    service, client, [(worker, task)] = reading(5)
    for _ in range(3):
        while not service.ask(task).done:
            pass
    assert [service.splits(client, 0, repetition) for repetition in range(3)] == [list(range(5))] * 3
    assert worker.tasks


def test_whoever_is_behind_is_told_that_its_repetition_is_over_and_joins_the_next() -> None:
    service, client, [(_, quick), (_, slow)] = reading(6, workers=2)
    service.ask(slow, want=1)
    while not service.ask(quick).done:
        pass
    service.ask(quick, want=1)
    assert service.ask(slow).done
    run = run_of(service.ask(slow, want=1))
    assert slow.places[0].repetition == 1
    assert set(range(*run)) <= set(service.splits(client, 0, 1))


def test_sources_are_handed_out_apart_from_each_other() -> None:
    service, client, [(worker, task)] = reading(3, 8)
    service.ask(task, 1)
    service.finish(worker, task)
    assert service.splits(client, 0, 0) == list(range(3))
    assert service.splits(client, 1, 0) == list(range(8))


def test_what_a_zip_leaves_of_its_longer_side_is_abandoned_for_all() -> None:
    service, client, [(_, mine), (_, its)] = reading(2, 50, workers=2)
    service.ask(its, 1, want=3)
    while not service.ask(mine, 0).done:
        pass
    service.ask(mine, 1, want=3)
    service.next_pass(mine)
    assert run_of(service.ask(mine, 1, want=3)) == (0, 3)
    assert service.ask(its, 1).done
    assert service.splits(client, 1, 0) == list(range(6))


def test_what_a_worker_had_and_was_not_done_with_is_lost_and_counted() -> None:
    service, client, [(worker, task), _] = reading(20, workers=2, inexact_reason="it draws at random")
    for _ in range(3):
        service.ask(task, want=3)
    service.consume(task, 4)
    service.stop(worker)
    service.hear(client)
    assert service.lost(client) == 5
    assert [loss.splits for loss in client.losses] == [5]


def test_what_a_worker_loses_that_is_replaced_at_its_address_is_announced_as_a_warning() -> None:
    service, client, [(worker, task), _] = reading(20, workers=2, cardinality=20, inexact_reason="it draws at random")
    service.ask(task, want=4)
    service.consume(task, 1)
    service.add_worker("again", worker.address)
    service.hear(client)
    told = [(told.level, told.text) for told in service.instructions if isinstance(told, e.Announce)]
    assert ("warning", "job 'anonymous-5000': 3 elements of the part of worker w0 did not reach its readers") in told
    assert [(loss.reason, loss.elements) for loss in client.losses] == [("was started again", 3)]


@pytest.mark.parametrize("deaths, lost", [(3, 0), (4, 4)])
def test_a_part_is_given_up_when_the_fourth_worker_in_a_row_dies_of_it(deaths: int, lost: int) -> None:
    """Three may be killed for other reasons, however soon one after the other."""
    service, client, [(worker, task)] = reading(20, cardinality=20)
    service.ask(task, want=4)
    for number in range(deaths):
        following = service.add_worker(f"next {number}")
        service.kill(worker)
        service.hear(client)
        assert service.lost(client) == (lost if number + 1 == deaths else 0)
        worker = following


# ---- on_worker_loss


def reading_with(rule: str, **changes: Any) -> tuple[Service, SimClient, SimWorker, SimTask, SimWorker]:
    """A client that has read two of four elements of a worker; another worker has nothing yet."""
    service = Service()
    worker, other = service.add_worker("w0"), service.add_worker("w1")
    client = service.join(service.register(20, cardinality=20, **changes), on_worker_loss=rule)
    task = service.task(worker)
    service.ask(task, want=4)
    service.consume(task, 2)
    service.report(worker)
    return service, client, worker, task, other


def test_repeat_begins_unfinished_splits_again_in_a_new_sequence() -> None:
    service, client, worker, task, other = reading_with("repeat", inexact_reason="it draws at random")
    service.kill(worker)
    service.hear(client)
    assert (service.lost(client), client.losses) == (0, [])
    again = other.tasks[task.task_id]
    assert run_of(service.ask(again, want=4)) == (2, 4), "two of the splits were consumed"
    told = [(told.level, told.text) for told in service.instructions if isinstance(told, e.Announce)]
    assert told[-1][0] == "warning"
    assert told[-1][1].endswith("repeats the part of worker w0: elements of its unfinished splits may come twice")


@pytest.mark.parametrize("rule, lost", [("drop", 2), ("", 0), ("raise", 0)])
def test_drop_makes_nothing_again_that_was_partly_delivered(rule: str, lost: int) -> None:
    service, client, worker, _, _ = reading_with(rule)
    service.kill(worker)
    service.hear(client)
    assert service.lost(client) == lost
    assert [loss.elements for loss in client.losses] == ([lost] if lost else [])


def test_drop_does_not_drop_what_a_worker_hands_over_that_stops() -> None:
    service, client, worker, _, _ = reading_with("drop")
    service.stop(worker)
    service.hear(client)
    assert (service.lost(client), client.losses) == (0, [])


@pytest.mark.parametrize("rule, lost", [("replay", 0), ("repeat", 0), ("", 2), ("raise", 2)])
def test_replay_and_repeat_do_not_limit_the_work(rule: str, lost: int) -> None:
    service, client, worker, _, _ = reading_with(rule, makes=Pipeline(slow=True))
    service.kill(worker)
    service.hear(client)
    assert service.lost(client) == lost


def test_what_a_reader_holds_of_a_part_that_is_given_up_as_it_leaves_is_counted() -> None:
    service = Service()
    worker = service.add_worker("v")
    dataset = service.countable(20, inexact_reason="it draws at random")
    leaves, stays = service.join(dataset, "train"), service.join(dataset, "train")
    service.ask(service.task(worker), want=8)
    service.open(leaves)
    for hold in leaves.holds.values():
        service.send(leaves, hold, 2)
    leaves.receive(2)
    service.read(stays, 3)
    service.kill(worker)
    for client in (leaves, stays):
        service.hear(client)
    (provider,) = service.core.state.iteration("train", 0).providers
    assert provider.lost == 3
    service.close(leaves)  # it does not know yet that nobody makes the two elements again
    assert provider.lost == 5


def test_what_was_done_before_a_worker_began_again_does_not_make_up_for_what_it_loses_then() -> None:
    service, client, [(worker, task)] = reading(20, inexact_reason="it draws at random")
    service.ask(task, want=4)
    service.consume(task)
    service.report(worker)
    again = service.add_worker("again", worker.address)
    service.hear(client)
    assert service.lost(client) == 0
    service.ask(service.task(again), want=4)
    service.consume(service.task(again), 1)
    service.stop(again)
    service.hear(client)
    assert service.lost(client) == 3


def test_a_worker_that_begins_again_has_the_same_splits_and_then_what_nobody_has_had() -> None:
    service, client, [(worker, task)] = reading(20)
    first = run_of(service.ask(task, want=4))
    again = service.add_worker("again", worker.address)
    service.hear(client)
    task = again.tasks[task.task_id]
    assert task.incarnation == 2
    assert run_of(service.ask(task)) == first
    assert run_of(service.ask(task, want=4))[0] == first[1]


def test_splits_of_which_all_was_consumed_are_not_made_again() -> None:
    service, client, [(worker, task)] = reading(20)
    run = run_of(service.ask(task, want=4))
    service.consume(task, 3)
    service.report(worker)
    again = service.add_worker("again", worker.address)
    service.hear(client)
    assert run_of(service.ask(again.tasks[task.task_id])) == (run[1] - 1, run[1])


def test_a_question_of_a_worker_that_the_task_was_taken_from_is_refused() -> None:
    service, client, [(worker, task)] = reading(20)
    service.add_worker("again", worker.address)
    service.hear(client)
    before = len(service.records)
    with pytest.raises(NotFoundError, match="belongs to another worker now"):
        service.call(asked(task.task_id))
    assert len(service.records) == before


# ---- workers that are drained


def test_a_draining_worker_gets_no_more_splits_and_the_others_get_the_rest() -> None:
    service, client, [(leaving, part), (staying, rest)] = reading(20, workers=2)
    had = run_of(service.ask(part, want=4))
    service.drain(leaving)
    assert service.ask(part).done
    service.ask_again(part)
    service.finish(staying, rest)
    assert service.held(rest, 0) == 20 - (had[1] - had[0])
    assert not client.finished


def test_a_draining_workers_task_goes_when_its_readers_have_had_what_it_made() -> None:
    service, client, [(leaving, part), (staying, rest)] = reading(20, workers=2)
    service.ask(part, want=4)
    service.drain(leaving)
    service.finish(leaving, part, consumed=False)
    service.finish(staying, rest)
    assert not service.see_end(client), "the client's word was taken for what its worker has yet to hand over"
    assert part.task_id in client.tasks
    service.consume(part)
    service.report(leaving)
    assert client.finished
    assert part.task_id not in client.tasks
    assert not client.losses


def test_a_draining_worker_that_came_to_the_end_by_itself_ends_the_pass() -> None:
    service, client, [(worker, task)] = reading(4)
    while not service.ask(task).done:
        pass
    service.drain(worker)
    task.finish()
    service.consume(task)
    service.report(worker)
    assert client.finished


@pytest.mark.parametrize("first", ["drains", "ends"])
def test_a_draining_worker_whose_part_is_consumed_does_not_wait_for_the_end_of_the_pass(first: str) -> None:
    service, client, [(worker, task), (other, rest)] = reading(20, workers=2)
    service.ask(rest, want=4)
    while not service.ask(task).done:
        pass
    if first == "drains":
        service.drain(worker)
    task.finish()
    service.consume(task)
    service.report(worker)
    if first == "ends":
        assert worker.tasks, "the client may still have to read the end"
        service.drain(worker)
    assert not worker.tasks
    service.kill(other)
    service.hear(client)
    new = service.add_worker("new")
    for part in list(new.tasks.values()):
        service.finish(new, part)
    assert client.finished
    assert not client.losses


def test_a_pass_ends_although_the_workers_that_consumed_all_of_it_left_one_after_another() -> None:
    service, client, [(worker, task), (idle, _)] = reading(20, workers=2)
    while not service.ask(task).done:
        pass
    service.finish(worker, task)
    service.drain(worker)
    service.stop(worker)
    assert not client.finished, "the other worker may have elements"
    service.drain(idle)
    assert client.finished
    assert not client.losses


def test_a_draining_worker_that_had_the_last_splits_ends_the_pass() -> None:
    service, client, [(worker, task)] = reading(4)
    while service.ask(task).end < 4:
        pass
    service.drain(worker)
    service.finish(worker, task)
    assert client.finished


def test_a_pass_that_only_draining_workers_had_waits_for_a_new_one() -> None:
    service, client, [(worker, task)] = reading(10)
    service.ask(task, want=2)
    service.drain(worker)
    service.finish(worker, task)
    assert not client.finished
    assert not client.tasks
    new = service.add_worker("new")
    service.finish(new, service.task(new))
    assert client.finished
    assert service.splits(client, 0, 0) == list(range(10))


def test_a_repeat_on_a_draining_worker_leaves_the_passes_to_come_to_the_others() -> None:
    service, client, [(worker, task)] = reading(3)
    while not service.ask(task).done:
        pass
    service.drain(worker)
    assert service.ask(task).done, "the draining worker began another repetition"
    task.finish()
    service.consume(task)
    service.report(worker)
    assert not client.finished
    assert not client.tasks


def test_a_task_that_never_began_goes_at_once_and_may_end_the_pass() -> None:
    service, client, [(leaving, unused), (staying, rest)] = reading(6, workers=2)
    service.finish(staying, rest)
    assert not client.finished
    service.drain(leaving)
    assert client.finished
    assert unused.task_id not in client.tasks


def test_that_splits_were_refused_outlives_the_dispatcher() -> None:
    service, client, [(worker, task)] = reading(10)
    service.ask(task, want=2)
    service.drain(worker)
    service.ask(task)
    assert sum(isinstance(record, r.SplitsRefused) for record in service.records) == 1
    service.restart()
    task.finish()
    service.consume(task)
    service.report(worker)
    assert not client.finished


# ---- a journal whose host lost its power


def two_at_work() -> tuple[Service, list[SimWorker], list[SimTask]]:
    """Two workers that had a run each, and then another one each."""
    service, _, at_work = reading(40, workers=2)
    for _ in range(2):
        for _, task in at_work:
            service.ask(task, want=4)
    return service, [worker for worker, _ in at_work], [task for _, task in at_work]


def come_back(service: Service, core: Core, worker: SimWorker) -> None:
    core.handle(worker.arrival(), now=service.now)
    core.validate()


@pytest.mark.parametrize("forgotten", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [1, -1])
def test_workers_that_come_back_tell_what_the_journal_lacks(forgotten: int, order: int) -> None:
    service, workers, tasks = two_at_work()
    whole = service.core.state
    core = Core(CONFIG, replay(service.records[:-forgotten]), now=service.now)
    for worker in workers[::order]:
        come_back(service, core, worker)
    for task in tasks:
        mine, its = core.state.tasks[task.task_id], whole.tasks[task.task_id]
        assert (mine.grants, mine.splits_given) == (its.grants, its.splits_given)
    [provider], [before] = (state.iteration("anonymous-5000", 0).providers for state in (core.state, whole))
    assert provider.next == before.next


def test_what_the_journal_lacks_and_others_have_got_since_stays_theirs() -> None:
    service, [worker, other], [task, its] = two_at_work()
    core = Core(CONFIG, replay(service.records[:-1]), now=service.now)  # the last run was the other's
    come_back(service, core, worker)
    core.handle(asked(task.task_id, cursor=8), now=service.now)
    come_back(service, core, other)
    assert core.state.tasks[its.task_id].splits_given[0] == 4


def test_nothing_is_believed_of_splits_that_there_are_not() -> None:
    service, [worker, _], [task, _] = two_at_work()
    before = service.core.state.export()
    for provider, end in ((1, 2), (0, 41)):
        told = SplitGrant(provider=provider, repetition=7, cursor=0, first=1, end=end)
        report = worker.arrival().report
        tasks = (TaskReport(task_id=task.task_id, incarnation=1, grants=(told,)),)
        service.call(e.WorkerArrives(report=replace(report, tasks=tasks)))
    assert service.core.state.export() == before


@pytest.mark.parametrize("incarnation,believed", [(0, False), (1, True)])
def test_a_worker_that_comes_back_is_believed_of_the_present_incarnation_only(incarnation: int, believed: bool) -> None:
    service, [worker, _], [task, _] = two_at_work()
    before = service.core.state.export()
    told = SplitGrant(cursor=8, first=16, end=20)
    tasks = (TaskReport(task_id=task.task_id, incarnation=incarnation, grants=(told,)),)
    service.call(e.WorkerArrives(report=replace(worker.arrival().report, tasks=tasks)))
    assert (service.core.state.export() != before) == believed


@pytest.mark.parametrize("incarnation", [0, 1, 2])
def test_a_worker_begins_what_the_journal_knows_although_it_has_a_later_incarnation(incarnation: int) -> None:
    """A worker takes an order of an earlier incarnation than it has for one that comes late."""
    service, [worker, _], [task, _] = two_at_work()
    tasks = (TaskReport(task_id=task.task_id, incarnation=incarnation),)
    arrival = e.WorkerArrives(report=replace(worker.arrival().report, tasks=tasks))
    ordered = [
        instruction
        for instruction in service.core.handle(arrival, service.now).instructions
        if isinstance(instruction, e.DropTask | e.StartTask)
    ]
    drop = e.DropTask(worker=worker.uid, task_id=task.task_id, incarnation=2)
    start = e.StartTask(worker=worker.uid, task_id=task.task_id)
    assert ordered == {0: [start], 1: [], 2: [drop, start]}[incarnation]


@pytest.mark.parametrize("change", ["a worker dies", "a worker joins"])
def test_a_pass_that_all_clients_have_read_is_finished_although_workers_come_and_go_before_it_is_reported(
    change: str,
) -> None:
    service = Service()
    worker, dataset = service.add_worker("w0"), service.register(20)
    first, second = service.join(dataset, "train"), service.join(dataset, "train")
    task = service.task(worker)
    service.exhaust(task)
    while service.read(first, 1) + service.read(second, 1):
        pass
    assert service.see_end(first)
    assert service.see_end(second)
    if change == "a worker dies":
        service.kill(worker)
    else:
        service.add_worker("late")
    service.close(first)
    service.close(second)
    assert service.core.state.jobs["train"].iterations[0].finished


def confirm_end(service: Service, client: SimClient) -> None:
    """Confirm the end as a client does, with what it has consumed; nothing more is heard of it."""
    report = ClientReport(client_id=client.client_id, leaving=True, holdings=client.consumed_holdings())
    request = EndRequest(client_id=client.client_id, ended=client.ended_tasks(), final_report=report)
    assert service.call(request).finished


def read_to_the_end_by_two(service: Service) -> tuple[Any, SimClient, SimClient]:
    """A worker and two clients that read all that it has, and confirmed their end."""
    worker, dataset = service.add_worker("w0"), service.register(20)
    first, second = service.join(dataset, "train"), service.join(dataset, "train")
    service.exhaust(service.task(worker))
    while service.read(first, 1) + service.read(second, 1):
        pass
    for client in (first, second):
        confirm_end(service, client)
    return worker, first, second


def test_a_pass_is_finished_although_a_client_is_lost_after_its_end_and_a_worker_before_its_report() -> None:
    service = Service()
    worker, first, second = read_to_the_end_by_two(service)
    service.kill(worker)
    service.close(second)
    service.kill_client(first)
    service.wait(service.config.reconnect_ms / 1000 + 1.0)
    assert not service.core.state.jobs["train"].clients
    assert service.core.state.jobs["train"].iterations[0].finished


def test_a_worker_that_asks_for_a_task_gets_none_that_waits_for_its_reassignment() -> None:
    """It would begin the task without the position that comes with the assignment, and ask for other splits."""
    service = Service()
    worker, dataset = service.add_worker("w0"), service.register(20)
    client = service.join(dataset, "train")
    task = service.task(worker)
    service.ask(task, want=4)
    assert requested_task_order(service.core, task.task_id).incarnation == 1
    service.kill(worker)
    service.kill_client(client)
    service.wait(service.config.worker_timeout_ms / 1000 + 1.0)
    assert service.core.state.tasks[task.task_id].unassignment is not None
    with pytest.raises(NotFoundError, match=f"the task {task.task_id} is not assigned to a worker"):
        requested_task_order(service.core, task.task_id)


def test_a_pass_that_all_clients_have_read_is_finished_although_the_dispatcher_is_restarted_before_they_leave() -> None:
    service = Service()
    worker, first, second = read_to_the_end_by_two(service)
    service.restart(absent=lambda one: one is worker)
    service.close(first)
    service.close(second)
    assert service.core.state.jobs["train"].iterations[0].finished
