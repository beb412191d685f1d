"""The shell around the core: decisions reach those whom they concern, and what was reported is not lost with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.service import Dispatcher, Outbox
from dsnb.errors import NotFoundError, UnavailableError
from dsnb.monitor.snapshot import JobStatus
from dsnb.wire.messages import (
    ClientRelease,
    ClientReport,
    ClientUpdate,
    DatasetInfo,
    ForgetRequest,
    IndexRange,
    JoinRequest,
    ResumePosition,
    SplitProvider,
    SplitsRequest,
    TaskHolding,
    TaskReport,
    TrainerReport,
    WorkerOrder,
    WorkerReport,
)
from dsnb.wire.schedule import ConsumerReport


class Service:
    """A desk with mailboxes as the calls make them, and nobody who reads them but the test."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.desk = Dispatcher(DispatcherConfig(), journal)

    def dataset(self, inexact: str = "") -> str:
        digest = self.desk.blobs.put_definition(b"a pipeline")
        info = DatasetInfo(
            fingerprint="f", cardinality=-1, compression="AUTO", pipeline="range(20)",
            providers=(SplitProvider(source="range(20)", count=20),), num_files=-1, inexact_reason=inexact,
        )  # fmt: skip
        return str(self.desk.handle(e.RegisterDataset(dataset_id="", definition=digest, info=info)).dataset_id)

    def worker(self, uid: str, address: str = "host:1") -> Outbox[WorkerOrder]:
        mailbox: Outbox[WorkerOrder] = Outbox()
        self.desk.worker_outboxes[uid] = mailbox
        self.desk.handle(e.WorkerArrives(report=WorkerReport(uid=uid, address=address, isolation="thread", pid=1)))
        return mailbox

    def client(self, job: str = "train", inexact: str = "") -> tuple[str, Outbox[ClientUpdate]]:
        join = JoinRequest(
            dataset_id=self.dataset(inexact), job_name=job, mode="DYNAMIC", cached=False, trainer_id="",
            compression="AUTO", target_workers="AUTO", iteration=0,
        )  # fmt: skip
        client_id = str(self.desk.handle(join).client_id)
        self.desk.statistics.client_joined(client_id, job, "")
        mailbox: Outbox[ClientUpdate] = Outbox()
        self.desk.client_outboxes[client_id] = mailbox
        return client_id, mailbox

    def report(self, uid: str, **tasks: int) -> None:
        """Let a worker say how much each task has produced."""
        known = self.desk.core.state.tasks
        reports = tuple(
            TaskReport(task_id=name, state="running", head=head, incarnation=known[name].incarnation)
            for name, head in tasks.items()
        )
        self.desk.worker_reported(WorkerReport(uid=uid, tasks=reports))

    def job(self, name: str = "train") -> JobStatus:
        """A job's status, without waiting for anybody to report."""
        self.desk.worker_outboxes, workers = {}, self.desk.worker_outboxes
        self.desk.client_outboxes, clients = {}, self.desk.client_outboxes
        status = self.desk.status().job(name)
        self.desk.worker_outboxes, self.desk.client_outboxes = workers, clients
        assert status is not None
        return status


def read(mailbox: Outbox[Any]) -> list[Any]:
    out = []
    while not mailbox.messages.empty():
        out.append(mailbox.messages.get())
    return out


def test_a_worker_is_told_what_to_start_with_all_that_it_needs() -> None:
    service = Service()
    mailbox = service.worker("w")
    service.client()
    [order] = read(mailbox)
    [start] = order.start
    assert (start.job_name, start.iteration, start.incarnation, start.mode, start.cached, start.num_providers) == (
        "train", 0, 1, "DYNAMIC", False, 1,
    )  # fmt: skip


def test_a_client_hears_of_tasks_that_come_later_and_where_they_are() -> None:
    service = Service()
    _, mailbox = service.client()
    service.worker("w", "host:7")
    [update] = read(mailbox)
    [task] = update.tasks
    assert (update.has_state, task.worker, task.worker_uid, task.address) == (True, "w0", "w", "host:7")


def test_a_client_hears_of_a_loss() -> None:
    service = Service()
    service.worker("w")
    client_id, mailbox = service.client(inexact="it draws at random")
    task = next(iter(service.desk.core.state.tasks))
    service.desk.handle(SplitsRequest(task_id=task, incarnation=1, provider=0, repetition=0, cursor=0, want=3))
    service.desk.handle(e.WorkerLeaves(uid="w"))
    [halted] = [known for known in read(mailbox)[-1].tasks if known.unassigned]
    consumed = (IndexRange(first=0, end=1),)
    holding = TaskHolding(task_id=task, incarnation=halted.incarnation, received=1, consumed=consumed)
    service.desk.client_reported(ClientReport(client_id=client_id, holdings=(holding,)))
    [loss] = [loss for update in read(mailbox) for loss in update.losses]
    assert (loss.task_id, loss.worker, loss.reason) == (task, "w0", "was stopped")


def test_only_the_readers_of_a_pass_hear_of_it() -> None:
    service = Service()
    service.worker("w")
    _, one = service.client("one")
    _, other = service.client("other")
    task = next(name for name, task in service.desk.core.state.tasks.items() if task.job == "one")
    service.desk.handle(WorkerReport(uid="w", ended=(task,)))
    assert [update.finished for update in read(one)] == [True]
    assert read(other) == []


def test_whoever_is_gone_has_its_stream_ended() -> None:
    service = Service()
    worker = service.worker("w")
    client_id, client = service.client()
    service.desk.handle(ClientReport(client_id=client_id, leaving=True))
    assert read(client)[-1] is None
    assert read(worker)[-1].releases == (ClientRelease(client_id=client_id, number=1),)
    service.desk.handle(e.WorkerLeaves(uid="w"))
    assert read(worker)[-1] is None
    assert not service.desk.worker_outboxes
    assert not service.desk.client_outboxes


def test_the_callers_mistake_is_raised_to_the_caller() -> None:
    with pytest.raises(NotFoundError, match="there is no job 'nowhere'"):
        Service().desk.handle(ForgetRequest(job_name="nowhere"))


def test_the_journal_leads_to_the_state_that_the_desk_has() -> None:
    service = Service()
    service.worker("w")
    service.client()
    assert service.desk.journal.load().export() == service.desk.core.state.export()


def test_what_could_not_be_kept_reaches_nobody_until_it_is_kept(tmp_path: Path) -> None:
    service = Service(Journal(tmp_path / "journal.sqlite"))
    worker = service.worker("w")
    read(worker)
    pragma = service.desk.journal.database.execute
    pragma("PRAGMA query_only = ON")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="cannot be written"):
            service.client()
    assert read(worker) == []
    assert service.desk.journal.load().datasets == {}
    pragma("PRAGMA query_only = OFF")
    service.desk.handle(e.Tick())
    assert service.desk.journal.load().export() == service.desk.core.state.export()
    service.client()
    assert len(read(worker)[-1].start) == 1
    service.desk.close()


def test_a_desk_that_takes_over_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    service = Service(Journal(tmp_path / "journal.sqlite"))
    service.worker("w")
    client_id, _ = service.client()
    before = service.desk.core.state.export()
    service.desk.close()
    again = Service(Journal(tmp_path / "journal.sqlite"))
    assert again.desk.core.state.export() == before
    again.desk.client_reported(ClientReport(client_id=client_id, elements=7))
    assert again.job().consumed == 7
    again.desk.close()


# ---- what is counted


def test_what_a_worker_produced_stays_counted_when_it_is_gone() -> None:
    service = Service()
    service.worker("w")
    service.client()
    [task] = service.desk.core.state.tasks
    service.report("w", **{task: 10})
    assert service.job().produced == 10
    service.desk.handle(e.WorkerLeaves(uid="w"))
    assert service.job().produced == 10


def test_what_a_worker_produces_of_a_task_that_it_takes_over_is_counted_on() -> None:
    service = Service()
    service.worker("w")
    client_id, _ = service.client()
    [task] = service.desk.core.state.tasks
    place = ResumePosition(index=8, pipeline_position="{}")
    behind = (TrainerReport(offset=8),)
    reports = (
        TaskReport(task_id=task, incarnation=1, state="running", head=10, resume_position=place, trainers=behind),
    )
    service.desk.worker_reported(WorkerReport(uid="w", tasks=reports))
    service.worker("again")
    assert service.job().produced == 10
    holding = TaskHolding(task_id=task, incarnation=2, received=8, consumed=(IndexRange(first=0, end=8),))
    service.desk.client_reported(ClientReport(client_id=client_id, holdings=(holding,)))
    service.report("again", **{task: 12})
    assert service.job().produced == 14, "the second worker began with element 8"
    status = next(status for status in service.job().tasks if status.task_id == task)
    assert (status.head, status.incarnation) == (12, 2)


def test_a_worker_that_was_given_up_is_counted_once_however_often_it_reports() -> None:
    service = Service()
    service.worker("w")
    service.client()
    [task] = service.desk.core.state.tasks
    service.report("w", **{task: 10})
    service.desk.handle(e.WorkerLeaves(uid="w"))
    for _ in range(3):
        with pytest.raises(NotFoundError):
            service.report("w", **{task: 12})
    assert service.job().produced == 10


def test_what_a_client_consumed_stays_counted_when_it_left() -> None:
    service = Service()
    service.worker("w")
    first, _ = service.client()
    service.client()
    service.desk.client_reported(ClientReport(client_id=first, elements=7))
    service.desk.client_reported(ClientReport(client_id=first, elements=9, leaving=True))
    assert service.job().consumed == 9


def test_blobs_of_a_dataset_that_is_dropped_are_let_go() -> None:
    service = Service()
    client_id, _ = service.client("")
    job = service.desk.core.state.clients[client_id].job
    definition = service.desk.core.state.datasets[service.desk.core.state.jobs[job].dataset_id].definition
    service.desk.handle(ClientReport(client_id=client_id, leaving=True))
    service.desk.core.transient.datasets_unused_since = dict.fromkeys(
        service.desk.core.transient.datasets_unused_since, -1e9
    )
    service.desk.core.transient.last_tick = service.desk.core.now
    service.desk.handle(e.Tick())
    assert service.desk.blobs.missing((definition,)) == (definition,)


# ---- many workers


class NeverScanned(dict[str, Any]):
    """A table of workers in which one can be looked up, and that nothing may go over."""

    def keys(self) -> Any:
        raise AssertionError("an event of one worker goes over all workers")

    __iter__ = values = items = keys


def test_an_event_of_one_worker_does_not_go_over_all_workers() -> None:
    service = Service()
    service.worker("w")
    client_id, _ = service.client()
    desk = service.desk
    [task] = desk.core.state.tasks
    desk.worker_outboxes = NeverScanned(desk.worker_outboxes)
    desk.statistics.workers = NeverScanned(desk.statistics.workers)
    desk.core.state.workers = NeverScanned(desk.core.state.workers)
    desk.handle(SplitsRequest(task_id=task, incarnation=1, want=3))
    service.report("w", **{task: 10})
    desk.client_reported(ClientReport(client_id=client_id))


def test_nothing_is_kept_of_a_worker_that_was_given_up_and_reports() -> None:
    service = Service()
    service.desk.worker_outboxes["stranger"] = mailbox = Outbox[WorkerOrder]()
    with pytest.raises(NotFoundError):
        service.report("stranger")
    assert read(mailbox) == [None]
    assert not service.desk.worker_outboxes
    assert not service.desk.statistics.workers


def test_nothing_is_kept_of_a_worker_whose_joining_failed() -> None:
    service = Service()
    service.desk.worker_outboxes["w"] = mailbox = Outbox[WorkerOrder]()
    service.desk.tick()
    assert read(mailbox) == [None]
    assert not service.desk.worker_outboxes


# ---- mistakes of dsnb's own


def test_a_bug_in_the_rounds_of_one_job_is_told_once_and_holds_up_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service()
    service.worker("w")
    desk = service.desk
    desk.handle(lone_consumer(service.dataset(), "damaged"))
    desk.core.transient.consumer_states["damaged", 0] = []  # the consumer is not in it
    joined = desk.handle(lone_consumer(service.dataset(), "whole"))
    desk.handle(ClientReport(client_id=joined.client_id, consumer=ConsumerReport(halt=1)))
    rounds = desk.core.state.jobs["whole"].iterations[0].rounds
    assert rounds is not None
    assert rounds.scheduled_client_ids == [joined.client_id]
    (record,) = [record for record in caplog.records if record.name == "dsnb.dispatcher.service"]
    assert "a bug of dsnb in coordinated reads: ValueError" in record.getMessage()
    assert record.exc_info is not None


def lone_consumer(dataset_id: str, job: str) -> JoinRequest:
    return JoinRequest(
        dataset_id=dataset_id, job_name=job, mode="OFF", cached=False, trainer_id="consumer 0", compression="AUTO",
        target_workers="AUTO", iteration=0, num_consumers=1,
    )  # fmt: skip


def test_what_was_decided_before_a_bug_is_kept_and_told() -> None:
    journal = Journal()
    service = Service(journal)
    service.worker("w")
    _, mailbox = service.client()
    live = service.desk.core.transient
    live.worker_deadlines["w"] = 0.0  # it is found to be lost, and then there is a job of which nothing is known
    live.iterations_unread_since["train", 0] = "yesterday"  # type: ignore[assignment]  # a bug may be anything
    with pytest.raises(TypeError):
        service.desk.handle(e.Tick())
    assert not service.desk.core.state.workers
    assert journal.load().export() == service.desk.core.state.export()
    assert read(mailbox)
