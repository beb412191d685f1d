"""The shell around the core: one lock, the journal, and the queues by which workers and clients hear of decisions."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from dsnb.dispatcher import events as e
from dsnb.dispatcher.blobs import BlobStore
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.jobs import known_job
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.ledger import Ledger
from dsnb.dispatcher.owner import Owner
from dsnb.dispatcher.positions import begin_of, root_of
from dsnb.dispatcher.records import DatasetDropped, JobCancelled, JobForgotten, PassArchived, Record, TaskLost
from dsnb.dispatcher.runs import Loss as KnownLoss
from dsnb.dispatcher.sharing import endless
from dsnb.dispatcher.state import Iteration, Task
from dsnb.dispatcher.status import snapshot
from dsnb.dispatcher.timeline import Timeline
from dsnb.errors import FailedPreconditionError, NotFoundError, UnavailableError, near
from dsnb.monitor.snapshot import EventStatus, Snapshot
from dsnb.wire.lineup import RoundsUpdate
from dsnb.wire.messages import (
    ClientRelease,
    ClientReport,
    ClientUpdate,
    Dismissal,
    Loss,
    TaskInfo,
    TaskOrder,
    TaskReport,
    TrainerPosition,
    WorkerOrder,
    WorkerReport,
)

Message = TypeVar("Message")

_log = logging.getLogger(__name__)

_EVENTS = 200
_COLLECT_S = 0.25
_COMING_S = 0.1
"""How long a status waits for readers that were let in and have not opened their control streams yet."""


class Mailbox(Generic[Message]):
    """What waits to be sent on one control stream, and up to which number its other side has answered.

    An error ends the stream with it, None without one.
    """

    def __init__(self) -> None:
        self.messages: SimpleQueue[Message | Exception | None] = SimpleQueue()
        self.answered = 0


class Desk:
    """Takes events from all threads, one at a time, and sees to what follows.

    Args:
        config: Times and limits.
        journal: What was decided before, and where decisions are kept; None for a new service in memory.
        blobs: What registered pipelines hold; None for the memory.
    """

    def __init__(
        self, config: DispatcherConfig, journal: Journal | None = None, blobs: BlobStore | None = None
    ) -> None:
        self.config = config
        self.journal = journal or Journal()
        self.core = Core(config, self.journal.load(), now=time.monotonic())
        self.blobs = blobs or BlobStore()
        self.ledger = Ledger()
        self.timeline = Timeline(self.core.state)
        self._unkept: e.Decision | None = None
        self.target = ""
        self.owner: Owner | None = None
        self.draining = False
        """Whether nobody may begin to read any more."""
        self.workers: dict[str, Mailbox[WorkerOrder]] = {}
        self.clients: dict[str, Mailbox[ClientUpdate]] = {}
        self._changed = threading.Condition(threading.RLock())
        self._events: deque[EventStatus] = deque(maxlen=_EVENTS)
        self._bugs: set[tuple[str, type]] = set()
        self._started = time.time()
        self._seq = 0
        self._collects = 0
        self._recall()
        self.handle(e.Begin(instance=secrets.token_hex(8)))

    def _recall(self) -> None:
        """Expect those again that the journal knows of, and let blobs go that were left behind."""
        for task in self.core.state.tasks.values():
            self.ledger.expect_task(task.task_id, task.job)
        for client in self.core.state.clients.values():
            if not client.cancelled:
                self.ledger.client_joined(client.client_id, client.job, client.trainer_id)
        self.keep_blobs_of_datasets()

    # ---- decisions

    def handle(self, event: e.Event) -> Any:
        """Decide, keep the records, carry out the instructions, and answer.

        Raises:
            DsnbError: what the core says of the caller's mistake.
            Exception: a mistake of dsnb's own.
        """
        with self._changed:
            self._keep()
            self._unkept = decision = self.core.handle(event, time.monotonic())
            self._keep()
            if decision.bug is not None:
                self.stumbled(decision.bug, "coordinated reads")
        if decision.error is not None:
            raise decision.error
        return decision.reply

    def _keep(self) -> None:
        """See to what follows from a decision. Where its records cannot be kept nobody hears of it, until they can."""
        if self._unkept is None:
            return
        self.journal.append(self._unkept.records)
        decision, self._unkept = self._unkept, None
        self.timeline.learn(decision.records, time.time())
        if self.journal.overdue:
            self._compact()
        if any(isinstance(record, DatasetDropped) for record in decision.records):
            self.keep_blobs_of_datasets()
        self._archive(decision.records)
        for away in [one for one in decision.instructions if isinstance(one, e.TurnAway)]:
            if away.worker in self.workers:
                self.workers[away.worker].messages.put(FailedPreconditionError(away.reason, did="it ended"))
        # First: what a worker produced that was started again is counted before its tasks are the new one's.
        self._forget_gone()
        for instruction in decision.instructions:
            self._carry_out(instruction)
        self._changed.notify_all()

    def _archive(self, records: Iterable[Record]) -> None:
        """Drop from the ledger what the state no longer keeps of archived and dropped jobs."""
        for record in records:
            if isinstance(record, PassArchived) and (job := self.core.state.jobs.get(record.job)) and job.archived:
                self.ledger.archive(record.job)
            elif isinstance(record, JobForgotten | JobCancelled):
                self.ledger.forget(record.name)

    def _compact(self) -> None:
        with suppress(UnavailableError):  # the records are kept, and it is tried again
            self.journal.compact(self.core.state)

    def keep_blobs_of_datasets(self) -> None:
        """Drop the blobs that no dataset uses."""
        datasets = self.core.state.datasets.values()
        self.blobs.keep_only({digest for d in datasets for digest in (d.definition, *d.blobs)})

    def close(self) -> None:
        """Let the journal go. What is decided from now on is kept nowhere, and refused."""
        with self._changed:
            self._compact()
            self.journal.close()

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.StartTask() | e.TellTask():  # a worker that has the task takes over what has changed
                task = self.core.state.tasks.get(instruction.task_id)
                if task is not None:
                    first = task.takeover.first if task.takeover is not None else 0
                    self.ledger.expect_task(task.task_id, task.job, first)
                    self._order(instruction.worker, WorkerOrder(start=(self.task_order(task),)))
            case e.DropTask():
                if not self._order(instruction.worker, WorkerOrder(drop=(instruction.task_id,))):
                    self.ledger.task_gone(instruction.task_id)
            case e.TellDrain():
                self._order(instruction.worker, WorkerOrder(drain=True))
            case e.TellCancelled():
                if (mailbox := self.clients.get(instruction.client_id)) is not None:
                    mailbox.messages.put(ClientUpdate(state=True, cancelled_by=instruction.by))
            case e.ReleaseClient():
                release = ClientRelease(
                    client_id=instruction.client_id, number=instruction.number, died=instruction.died
                )
                self._order(instruction.worker, WorkerOrder(releases=(release,)))
            case e.AskReport():
                self._order(instruction.worker, WorkerOrder(collect=max(1, self._collects)))
            case e.TellClients():
                self._tell(instruction.job, instruction.number, self.update(instruction.job, instruction.number))
            case e.TellLoss():
                losses = (_loss(instruction.loss),)
                self._tell(instruction.job, instruction.number, ClientUpdate(losses=losses))
            case e.Announce():
                self._events.append(EventStatus(time=time.time(), level=instruction.level, text=instruction.text))

    def _order(self, worker: str, order: WorkerOrder) -> bool:
        mailbox = self.workers.get(worker)
        if mailbox is not None:
            mailbox.messages.put(order)
        return mailbox is not None

    def _tell(self, job: str, number: int, update: ClientUpdate) -> None:
        known = self.core.state.jobs.get(job)
        iteration = known.iterations.get(number) if known else None
        for client in iteration.clients if iteration else ():
            mailbox = self.clients.get(client)
            if mailbox is not None:
                mailbox.messages.put(update)

    def _tell_trainer(self, job: str, trainer_id: str, update: ClientUpdate) -> None:
        for client in self.core.state.clients.values():
            if (client.job, client.trainer_id) == (job, trainer_id) and client.client_id in self.clients:
                self.clients[client.client_id].messages.put(update)

    def _forget_gone(self) -> None:
        """Let go of what belongs to workers, clients and jobs that the state no longer has."""
        state = self.core.state
        for uid in self.workers.keys() - state.workers.keys():
            self.workers.pop(uid).messages.put(None)
        for uid in self.ledger.workers.keys() - state.workers.keys():
            self.ledger.worker_gone(uid)
        for client in self.clients.keys() - state.clients.keys():
            self.clients.pop(client).messages.put(None)
        self.ledger.keep(state.jobs.keys(), state.clients.keys())

    def worker_died(self, uid: str, how: str) -> None:
        """A worker's owner saw it die."""
        with self._changed:
            self.handle(e.WorkerLeaves(uid=uid, death=how + self.ledger.last_produced(uid)))

    def dismiss(self, job_name: str, trainer_id: str) -> None:
        """Have the workers keep nothing for a trainer any longer.

        Raises:
            NotFoundError: there is no such job, or it has no such trainer.
        """
        with self._changed:
            job = known_job(self.core, job_name)
            known = self.ledger.job(job.name).trainer_ids()
            if trainer_id not in known:
                raise NotFoundError(
                    f"the job {job.name!r} has no trainer {trainer_id!r}",
                    did="nothing was changed",
                    hint=f"{near(trainer_id, known)}its trainers are {', '.join(map(repr, known)) or 'none yet'}",
                )
            for task in [self.core.state.tasks[t] for i in job.iterations.values() for t in i.tasks]:
                dismissal = Dismissal(task_id=task.task_id, trainer_id=trainer_id)
                self._order(task.worker, WorkerOrder(dismiss=(dismissal,)))
            self.announce(f"trainer {trainer_id!r} of job {job.name!r} was sent away", "info")

    def stumbled(self, bug: Exception, where: str) -> None:
        """Tell of a mistake of dsnb's own that is nothing to any caller; of one that comes again and again, once."""
        with self._changed:
            if (where, type(bug)) not in self._bugs:
                self._bugs.add((where, type(bug)))
                text = f"a bug of dsnb in {where}: {type(bug).__name__}: {bug}; please report it with the log"
                _log.error("%s", text, exc_info=bug)
                self.announce(text, "warning")

    def announce(self, text: str, level: str) -> None:
        """Add a line to the events that people read."""
        with self._changed:
            self._carry_out(e.Announce(level=level, text=text))

    # ---- what is told

    def task_order(self, task: Task) -> TaskOrder:
        job = self.core.state.jobs[task.job]
        iteration = job.iterations[task.number]
        return TaskOrder(
            task_id=task.task_id,
            dataset_id=job.dataset_id,
            job_name=job.name,
            iteration=task.number,
            incarnation=task.incarnation,
            mode=job.mode,
            cached=job.cached,
            providers=len(iteration.providers),
            shards=len(iteration.shards),
            shard=max(0, task.shard),
            entropy=root_of(iteration, task),
            position=begin_of(iteration, task),
            endless=endless(self.core, job),
            paused=bool(job.paused_by),
            consumers=job.consumers,
            definition=self.core.state.datasets[job.dataset_id].definition,
        )

    def task_infos(self, job: str, number: int) -> tuple[TaskInfo, ...]:
        """An iteration's tasks, as its clients hear of them."""
        state = self.core.state
        # A trainer that joins late may begin with elements that all others are done with.
        past = not state.jobs[job].cached
        return tuple(
            TaskInfo(
                task_id=task.task_id,
                worker=state.worker_name(task),
                worker_uid=task.worker,
                address=state.workers[task.worker].address if task.halt is None else "",
                incarnation=task.incarnation,
                ended=task.ended,
                halted=task.halt is not None,
                needed_from=task.resume.index if task.resume is not None and past else 0,
                sequence=task.sequence,
            )
            for task in map(state.tasks.__getitem__, state.iteration(job, number).tasks)
        )

    def update(self, job: str, number: int, losses_heard: int | None = None) -> ClientUpdate:
        """How an iteration is now; for one who has heard of so many of its losses, with the others."""
        known = self.core.state.jobs.get(job)
        iteration = known.iterations.get(number) if known else None
        if known is None or iteration is None:
            return ClientUpdate()
        unheard = () if losses_heard is None else iteration.losses[losses_heard:]
        losses = tuple(map(_loss, unheard))
        tasks = self.task_infos(job, number)
        rounds = _rounds(iteration)
        return ClientUpdate(
            state=True, tasks=tasks, finished=iteration.finished, losses=losses, rounds=rounds,
            paused=bool(known.paused_by),
        )  # fmt: skip

    def locked(self) -> threading.Condition:
        """The lock, for looks at several tables at once."""
        return self._changed

    def hang_up(self) -> None:
        """End all control streams."""
        with self._changed:
            for worker in self.workers.values():
                worker.messages.put(None)
            for client in self.clients.values():
                client.messages.put(None)

    # ---- reports

    def worker_reported(self, report: WorkerReport) -> None:
        progress = {task.task_id: _progress(task) for task in report.tasks}
        clients = frozenset(client for task in report.tasks for client in task.clients)
        partial = tuple(task.task_id for task in report.tasks if task.partial)
        with self._changed:
            for job, trainer_id in self.ledger.worker_reported(report):
                self.announce(
                    f"trainer {trainer_id!r} of job {job!r} begins to lose data: it fell out of the window; "
                    'CrossTrainerCache(on_lag="wait") or "spill" loses nothing, a larger window gives it more time',
                    "warning",
                )
                self._tell_trainer(job, trainer_id, ClientUpdate(losing=True))
            self.handle(
                e.WorkerSeen(
                    uid=report.uid,
                    ended=report.ended,
                    progress=progress,
                    clients=clients,
                    partial=partial,
                    released=report.released,
                )
            )
            mailbox = self.workers.get(report.uid)
            if mailbox is not None:
                mailbox.answered = max(mailbox.answered, report.seq)

    def client_reported(self, report: ClientReport) -> None:
        with self._changed:
            client = self.core.state.clients.get(report.client_id)
            if client is not None:
                self.ledger.client_reported(report, client.job)
                mailbox = self.clients.get(report.client_id)
                if mailbox is not None:
                    mailbox.answered = max(mailbox.answered, report.seq)
            if report.consumer is not None:
                self.handle(e.ConsumerSaid(client_id=report.client_id, report=report.consumer))
            if report.holdings and not report.leaving:
                self.handle(e.HoldingsTold(client_id=report.client_id, holdings=report.holdings))
            leaving = e.ClientLeaves(client_id=report.client_id, holdings=report.holdings)
            self.handle(leaving if report.leaving else e.ClientSeen(client_id=report.client_id))

    def collect(self) -> None:
        """Have everybody report now, and wait a moment for it: a status is as fresh as it can be."""
        with self._changed:
            self._changed.wait_for(self._all_follow, _COMING_S)
            self._collects += 1
            number = self._collects
            clients, workers = list(self.clients.values()), list(self.workers.values())
            for client in clients:
                client.messages.put(ClientUpdate(collect=number))
            # Clients first: their report also tells the workers what was consumed.
            self._changed.wait_for(lambda: all(c.answered >= number for c in clients), _COLLECT_S)
            for worker in workers:
                worker.messages.put(WorkerOrder(collect=number))
            self._changed.wait_for(lambda: all(w.answered >= number for w in workers), _COLLECT_S)

    def _all_follow(self) -> bool:
        return all(known.cancelled or known.client_id in self.clients for known in self.core.state.clients.values())

    def status(self) -> Snapshot:
        """A fresh snapshot."""
        self.collect()
        with self._changed:
            self.core.now = time.monotonic()
            self._seq += 1
            return snapshot(
                self.core,
                self.ledger,
                self._events,
                self.owner,
                self.timeline,
                seq=self._seq,
                time=time.time(),
                service=self.config.name,
                target=self.target,
                started=self._started,
            )


def _loss(known: KnownLoss | TaskLost) -> Loss:
    return Loss(
        task_id=known.task_id,
        worker=known.worker,
        splits=known.splits,
        reason=known.reason,
        elements=known.elements,
        trainer_id=known.trainer_id,
        again=known.again,
    )


def _progress(task: TaskReport) -> e.Progress:
    return e.Progress(
        incarnation=task.incarnation,
        done=task.splits_done,
        resume=task.resume,
        trainers=tuple(
            TrainerPosition(trainer_id=trainer.trainer_id, offset=trainer.offset, consumed=trainer.consumed_beyond)
            for trainer in task.trainers
        ),
        exhausted=task.exhausted,
        sent={link.client: link.sent for link in task.links},
        short_by=task.short_by,
        repeated=task.repeated,
    )


def _rounds(iteration: Iteration) -> RoundsUpdate | None:
    rounds = iteration.rounds
    if rounds is None:
        return None
    halt = rounds.halts if rounds.halted else 0
    return RoundsUpdate(halt=halt, lineups=tuple(rounds.lineups), dropped=rounds.dropped)
