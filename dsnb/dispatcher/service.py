"""The shell around the core: one lock, the journal, and the queues of messages to workers and clients.

Each event is handled under the lock: the core decides, the journal commits the records, then the instructions are
carried out. If the journal cannot be written, no instruction is carried out and no further event is handled until the
records are committed.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from dsnb.dispatcher import events as e
from dsnb.dispatcher.autoscaling import Autoscaling
from dsnb.dispatcher.blobs import BlobStore
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.handlers import orders, positions, receipts
from dsnb.dispatcher.handlers.jobs import known_job, unknown_client_error
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.records import (
    ClientLeft,
    DatasetDropped,
    IterationArchived,
    IterationDropped,
    JobCancelled,
    JobForgotten,
    Record,
    WorkerLeft,
)
from dsnb.dispatcher.split_history import SplitHistory
from dsnb.dispatcher.statistics import Statistics
from dsnb.dispatcher.status import snapshot
from dsnb.dispatcher.trainer_presence import TrainerPresence
from dsnb.dispatcher.worker_pool import WorkerPool
from dsnb.errors import CancelledError, FailedPreconditionError, NotFoundError, UnavailableError, did_you_mean
from dsnb.monitor.receipt import Receipt
from dsnb.monitor.snapshot import EventStatus, Snapshot
from dsnb.storage.failpoints import Failpoint
from dsnb.wire.messages import (
    ClientReport,
    ClientUpdate,
    DroppedTask,
    EndReply,
    EndRequest,
    IterationPosition,
    PositionRequest,
    ReceiptRequest,
    TaskReport,
    TrainerEviction,
    WorkerOrder,
    WorkerReport,
)

Message = TypeVar("Message")

_log = logging.getLogger(__name__)

_LEAVING = (WorkerLeft, ClientLeft, JobForgotten, JobCancelled, IterationDropped, IterationArchived)
"""The records after which a worker, a client or a job may be gone."""
_MAX_EVENTS = 200
_CARRY_OUT = Failpoint("decision carry out", error=None)
_REPORT_TIMEOUT_S = 0.25
_CONNECT_TIMEOUT_S = 0.1
"""How long a status waits for clients that have joined and not opened their control streams yet."""


def _random_bits() -> int:
    return secrets.randbits(63)


class Outbox(Generic[Message]):
    """The messages to send on one control stream, and the last request for a report that the peer has answered.

    An exception in the queue ends the stream with that error; None ends it without one.
    """

    def __init__(self) -> None:
        self.messages: SimpleQueue[Message | Exception | None] = SimpleQueue()
        self.answered_seq = 0


class Dispatcher:
    """Handles events from all threads, one at a time, and carries out what the core decides.

    Args:
        config: Times and limits.
        journal: Stores the records, and restores the state from them; None for a new service in memory.
        blobs: Stores the definitions and captured arrays of registered pipelines; None to keep them in memory.
        clock: Returns the seconds of a monotonic clock.
        entropy: Returns 63 random bits.
    """

    def __init__(
        self,
        config: DispatcherConfig,
        journal: Journal | None = None,
        blobs: BlobStore | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[], int] = _random_bits,
    ) -> None:
        self.config = config
        self._clock = clock
        self._entropy = entropy
        self.journal = journal or Journal()
        self.core = Core(config, self.journal.load(), now=clock())
        self.blobs = blobs or BlobStore()
        self.statistics = Statistics()
        self.split_history = SplitHistory(self.core.state)
        self._uncommitted: e.Decision | None = None
        self.target = ""
        self.worker_pool: WorkerPool | None = None
        self._autoscaling: Autoscaling | None = None
        self.draining = False
        """Whether new clients are refused."""
        self.stopping = threading.Event()
        """Set when the streams to viewers are to end."""
        self.worker_outboxes: dict[str, Outbox[WorkerOrder]] = {}
        self.client_outboxes: dict[str, Outbox[ClientUpdate]] = {}
        self._changed = threading.Condition(threading.RLock())
        self._events: deque[EventStatus] = deque(maxlen=_MAX_EVENTS)
        self._trainer_presence = TrainerPresence()
        self._reported_bugs: set[tuple[str, type]] = set()
        self._started_at = time.time()
        self._snapshot_seq = 0
        self._report_seq = 0
        self._restore()
        self.handle(e.DispatcherStarts(instance=f"{entropy():016x}"))

    def _restore(self) -> None:
        """Register the restored tasks and clients in the statistics, and drop blobs that no dataset uses."""
        for task in self.core.state.tasks.values():
            self.statistics.register_task(task.task_id, task.job, incarnation=task.incarnation)
        for client in self.core.state.clients.values():
            if not client.cancelled_by:
                self.statistics.client_joined(client.client_id, client.job, client.trainer_id)
                if client.trainer_id:
                    self._trainer_presence.joined(client.job, client.trainer_id)
        self.drop_unused_blobs()

    # ---- decisions

    def handle(self, event: e.Event) -> Any:
        """Handle one event: decide, commit the records, carry out the instructions, and return the reply.

        Raises:
            DsnbError: the caller's mistake, as found by the core.
            UnavailableError: the journal cannot be written.
            Exception: a bug of dsnb.
        """
        with self._changed:
            self._commit()  # an earlier decision that could not be written: records must stay in order
            self._uncommitted = decision = self.core.handle(event, self._clock(), self._entropy())
            self._commit()
            if decision.bug is not None:
                self.report_bug(decision.bug, "coordinated reads")
        if decision.error is not None:
            raise decision.error
        return decision.reply

    def _commit(self) -> None:
        """Commit the pending decision and carry it out. If its records cannot be written, it stays pending."""
        if self._uncommitted is None:
            return
        self.journal.append(self._uncommitted.records)
        decision, self._uncommitted = self._uncommitted, None
        self.split_history.apply(decision.records, time.time())
        if self.journal.needs_compaction:
            self._compact()
        if any(isinstance(record, DatasetDropped) for record in decision.records):
            self.drop_unused_blobs()
        self._archive(decision.records)
        for away in [one for one in decision.instructions if isinstance(one, e.DisconnectWorker)]:
            if away.worker in self.worker_outboxes:
                self.worker_outboxes[away.worker].messages.put(FailedPreconditionError(away.reason, did="it ended"))
        # Before the instructions: the statistics must count what a restarted worker's old process produced before
        # `StartTask` registers the tasks for the new process. Only after records that remove something, because it
        # scans all workers; and after an error, because the caller may not be in the state.
        if decision.error is not None or any(isinstance(record, _LEAVING) for record in decision.records):
            self._forget_gone()
        with _CARRY_OUT:
            for instruction in decision.instructions:
                self._carry_out(instruction)
        self._changed.notify_all()

    def _archive(self, records: Iterable[Record]) -> None:
        """Reduce the statistics of archived jobs to their totals, and drop those of forgotten jobs."""
        for record in records:
            if isinstance(record, IterationArchived) and (job := self.core.state.jobs.get(record.job)) and job.archived:
                self.statistics.archive(record.job)
            elif isinstance(record, JobForgotten | JobCancelled):
                self.statistics.forget_archived(record.name)

    def _compact(self) -> None:
        with suppress(UnavailableError):  # the records are still in the file; the next commit tries again
            self.journal.compact(self.core.state)

    def drop_unused_blobs(self) -> None:
        """Delete the blobs that no dataset uses."""
        datasets = self.core.state.datasets.values()
        self.blobs.keep_only({digest for d in datasets for digest in (d.definition, *d.info.blobs)})

    def close(self) -> None:
        """End autoscaling and close the journal. Later events that produce records fail."""
        self.autoscale(0, 0)
        with self._changed:
            self._compact()
            self.journal.close()

    def _carry_out(self, instruction: e.Instruction) -> None:  # noqa: C901, PLR0912 - one flat case for each
        match instruction:
            case e.StartTask() | e.UpdateTask():  # a worker that already has the task applies only the changes
                task = self.core.state.tasks.get(instruction.task_id)
                if task is not None:
                    first = task.takeover_position.first_index if task.takeover_position is not None else 0
                    self.statistics.register_task(task.task_id, task.job, first, task.incarnation)
                    self._send_order(instruction.worker, WorkerOrder(start=(orders.task_order(self.core, task),)))
            case e.DropTask():
                dropped = DroppedTask(task_id=instruction.task_id, incarnation=instruction.incarnation)
                if not self._send_order(instruction.worker, WorkerOrder(drop=(dropped,))):
                    self.statistics.task_gone(instruction.task_id)
            case e.SendDrainOrder():
                self._send_order(instruction.worker, WorkerOrder(drain=True))
            case e.NotifyCancelled():
                self._notify_client(
                    instruction.client_id, ClientUpdate(has_state=True, cancelled_by=instruction.cancelled_by)
                )
            case e.NotifyRunning():
                self._notify_client(instruction.client_id, ClientUpdate(running_workers=(instruction.worker,)))
            case e.ReleaseClient():
                self._send_order(instruction.worker, WorkerOrder(releases=(instruction.release,)))
            case e.ConfirmClosed():
                self._send_order(instruction.worker, WorkerOrder(closed=(instruction.closed,)))
            case e.RequestReport():
                self._send_order(instruction.worker, WorkerOrder(report_seq=max(1, self._report_seq)))
            case e.NotifyClients():
                update = orders.client_update(self.core, instruction.job, instruction.iteration)
                self._notify_clients(instruction.job, instruction.iteration, update)
            case e.NotifyLoss():
                update = ClientUpdate(losses=(instruction.loss,))
                self._notify_clients(instruction.job, instruction.iteration, update)
            case e.Announce():
                self._events.append(EventStatus(time=time.time(), level=instruction.level, text=instruction.text))

    def _send_order(self, worker: str, order: WorkerOrder) -> bool:
        outbox = self.worker_outboxes.get(worker)
        if outbox is not None:
            outbox.messages.put(order)
        return outbox is not None

    def _notify_clients(self, job: str, number: int, update: ClientUpdate) -> None:
        known = self.core.state.jobs.get(job)
        iteration = known.iterations.get(number) if known else None
        for client in iteration.clients if iteration else ():
            self._notify_client(client, update)

    def _notify_client(self, client_id: str, update: ClientUpdate) -> None:
        outbox = self.client_outboxes.get(client_id)
        if outbox is not None:
            outbox.messages.put(update)

    def _notify_trainer(self, job: str, trainer_id: str, update: ClientUpdate) -> None:
        for client in self.core.state.clients.values():
            if (client.job, client.trainer_id) == (job, trainer_id):
                self._notify_client(client.client_id, update)

    def _forget_gone(self) -> None:
        """Drop outboxes and statistics of workers, clients and jobs that are no longer in the state."""
        state = self.core.state
        for uid in self.worker_outboxes.keys() - state.workers.keys():
            self.worker_outboxes.pop(uid).messages.put(None)
        gone = self.statistics.workers.keys() - state.workers.keys()
        hosts = {self.statistics.workers[uid].host_id for uid in gone}
        for uid in gone:
            self.statistics.worker_gone(uid)
        for host_id in hosts:
            self.notify_workers_of_host(host_id)
        for client in self.client_outboxes.keys() - state.clients.keys():
            self.client_outboxes.pop(client).messages.put(None)
        self.statistics.retain_only(state.jobs.keys(), state.clients.keys())

    def notify_workers_of_host(self, host_id: str) -> None:
        """Tell the workers of a host how many processors all of them may use: maybe more than the host has."""
        if host_id:
            reports = [report for report in self.statistics.workers.values() if report.host_id == host_id]
            order = WorkerOrder(cpus_of_host_workers=sum(report.cpus for report in reports))
            for report in reports:
                self._send_order(report.uid, order)

    def worker_died(self, uid: str, exit_reason: str) -> None:
        """Count a worker as lost, because the process that owns it has seen it die."""
        with self._changed:
            self.handle(e.WorkerLeaves(uid=uid, exit_reason=exit_reason + self.statistics.last_produced(uid)))

    def evict_trainer(self, job_name: str, trainer_id: str, requested_by: str = "") -> None:
        """Have the workers drop everything that they keep for a trainer; `requested_by` is who wants it, for display.

        Raises:
            NotFoundError: there is no such job, or the job has no such trainer.
        """
        with self._changed:
            job = known_job(self.core, job_name)
            known = self.statistics.job(job.name).trainer_ids()
            if trainer_id not in known:
                raise NotFoundError(
                    f"the job {job.name!r} has no trainer {trainer_id!r}",
                    did="nothing was changed",
                    hint=f"{did_you_mean(trainer_id, known)}its trainers are "
                    f"{', '.join(map(repr, known)) or 'none yet'}",
                )
            for task in [self.core.state.tasks[t] for i in job.iterations.values() for t in i.tasks]:
                eviction = TrainerEviction(task_id=task.task_id, trainer_id=trainer_id)
                self._send_order(task.worker, WorkerOrder(evict_trainers=(eviction,)))
            by = requested_by or "an older client of dsnb"
            self.statistics.job(job.name).evictions[trainer_id] = by
            self.announce(f"trainer {trainer_id!r} of job {job.name!r} was evicted by {by}", "info")

    def report_bug(self, bug: Exception, where: str) -> None:
        """Log and announce a bug of dsnb that no caller gets as an error; once for each place and exception type."""
        with self._changed:
            if (where, type(bug)) not in self._reported_bugs:
                self._reported_bugs.add((where, type(bug)))
                text = f"a bug of dsnb in {where}: {type(bug).__name__}: {bug}; please report it with the log"
                _log.error("%s", text, exc_info=bug)
                self.announce(text, "warning")

    def announce(self, text: str, level: str) -> None:
        """Add a line to the events of the status."""
        with self._changed:
            self._carry_out(e.Announce(level=level, text=text))

    @property
    def events(self) -> list[EventStatus]:
        """The newest lines of the events, as the status shows them."""
        with self._changed:
            return list(self._events)

    def locked(self) -> threading.Condition:
        """The lock, as a context manager, for reading several tables consistently."""
        return self._changed

    def debug_state(self) -> dict[str, Any]:
        """What the dispatcher keeps, as plain data."""
        with self._changed:
            state = self.core.state
            return {
                "instance": state.instance,
                "workers": {uid: worker.name for uid, worker in state.workers.items()},
                "datasets": {dataset_id: dataset.definition for dataset_id, dataset in state.datasets.items()},
                "blobs": self.blobs.debug_state(),
                "jobs": [*state.jobs],
                "tasks": [*state.tasks],
                "clients": [*state.clients],
                "next_client": state.next_numbers["client"],
                "statistics": self.statistics.debug_state(),
                "state_bytes": len(state.export()),
                "last_record": self.journal.last_number,
            }

    def close_streams(self) -> None:
        """End the control streams of all workers and clients, and the streams to viewers."""
        self.stopping.set()
        with self._changed:
            for worker in self.worker_outboxes.values():
                worker.messages.put(None)
            for client in self.client_outboxes.values():
                client.messages.put(None)
            self._changed.notify_all()

    def autoscale(self, minimum: int, maximum: int) -> None:
        """Choose the number of workers automatically from now on; a maximum of 0 ends that.

        Raises:
            FailedPreconditionError: the service does not start its workers itself.
        """
        pool = self.worker_pool
        if maximum and pool is None:
            raise FailedPreconditionError(
                "the workers of this service were started one by one",
                did="nothing was changed",
                hint="use the metric dsnb_workers_wanted, with which other autoscalers can start and stop them",
            )
        with self._changed:  # two calls at once must not leave an autoscaler that nobody knows
            before = self._autoscaling
            if before is not None:
                before.stop()
            self._autoscaling = Autoscaling(self, pool, minimum, maximum) if maximum and pool is not None else None
        if before is not None:  # without the lock: the decision needs a status
            before.join()

    # ---- reports

    def client_joined(self, client_id: str, job: str, trainer_id: str) -> None:
        """Begin to count for a client; a trainer's first client is announced."""
        with self._changed:
            self.statistics.client_joined(client_id, job, trainer_id)
            if trainer_id and self._trainer_presence.joined(job, trainer_id):
                self.announce(f"trainer {trainer_id!r} joined job {job!r}", "info")

    def tick(self) -> None:
        """Handle the passing of time: deadlines of the core, and trainers that have left."""
        with self._changed:
            self._forget_gone()  # if a worker's join could not be journaled, it has an outbox but is not in the state
        self.handle(e.Tick())
        with self._changed:
            jobs = {name for name, job in self.core.state.jobs.items() if not job.archived}
            readers = {(client.job, client.trainer_id) for client in self.core.state.clients.values()}
            for job, trainer_id in self._trainer_presence.update(jobs, readers, self._clock()):
                elements = self.statistics.job(job).trainer(trainer_id).elements
                self.announce(f"trainer {trainer_id!r} left job {job!r} after {elements:,} elements", "info")

    def worker_reported(self, report: WorkerReport) -> None:
        with self._changed:
            for job, trainer_id in self.statistics.worker_reported(report, self._is_superseded):
                self._announce_skipping(job, trainer_id)
            for notice in report.notices:
                self.announce(notice, "warning")
            self.handle(report)
            outbox = self.worker_outboxes.get(report.uid)
            if outbox is not None:
                outbox.answered_seq = max(outbox.answered_seq, report.seq)

    def _is_superseded(self, report: TaskReport) -> bool:
        """Whether a report is of an earlier incarnation of a task than the present one."""
        task = self.core.state.tasks.get(report.task_id)
        return task is not None and report.incarnation < task.incarnation

    def _announce_skipping(self, job: str, trainer_id: str) -> None:
        """Tell a trainer, and in the events, that it begins to miss elements; its eviction is an event already."""
        evicted_by = self.statistics.job(job).evictions.get(trainer_id, "")
        if not evicted_by:
            self.announce(
                f"trainer {trainer_id!r} of job {job!r} begins to lose data: it fell out of the window; "
                'CrossTrainerCache(on_lag="wait") or "spill" loses nothing, a larger window gives it more time',
                "warning",
            )
        self._notify_trainer(job, trainer_id, ClientUpdate(skipping=True, evicted_by=evicted_by))

    def client_reported(self, report: ClientReport) -> None:
        with self._changed:
            self._note_client_report(report)
            self.handle(report)

    def confirm_end(self, request: EndRequest) -> EndReply:
        """Handle a client's question whether its iteration is over; see `handlers.ends`."""
        with self._changed:
            if request.final_report is not None:
                self._note_client_report(request.final_report)
            reply: EndReply = self.handle(request)
            return reply

    def position(self, request: PositionRequest) -> IterationPosition:
        """Where a client's iteration is.

        Raises:
            NotFoundError: the client was counted as lost, or never existed.
            CancelledError: its job was cancelled.
        """
        with self._changed:
            self._check_client(request.client_id)
            silent = self._silent_workers(positions.workers_to_ask(self.core, request.client_id))
            self._check_client(request.client_id)  # it may be gone since
            return positions.iteration_position(self.core, request.client_id, silent)

    def _check_client(self, client_id: str) -> None:
        client = self.core.state.clients.get(client_id)
        if client is None:
            raise unknown_client_error(client_id)
        if client.cancelled_by:
            raise CancelledError(
                f"the job {client.job!r} was cancelled by {client.cancelled_by}",
                did="the positions of its readers were dropped with it",
                hint="save the position before the job is cancelled, or start from an earlier one",
            )

    def _silent_workers(self, workers: Iterable[str]) -> set[str]:
        """Request reports from workers, and wait briefly for them; returns the workers that did not answer."""
        asked = {uid: outbox for uid in workers if (outbox := self.worker_outboxes.get(uid)) is not None}
        self._report_seq += 1
        number = self._report_seq
        for outbox in asked.values():
            outbox.messages.put(WorkerOrder(report_seq=number))
        self._wait_for_reports(list(asked.values()), number)
        return {uid for uid in workers if uid not in asked or asked[uid].answered_seq < number}

    def _note_client_report(self, report: ClientReport) -> None:
        client = self.core.state.clients.get(report.client_id)
        if client is not None:
            self.statistics.client_reported(report, client.job)
            outbox = self.client_outboxes.get(report.client_id)
            if outbox is not None:
                outbox.answered_seq = max(outbox.answered_seq, report.seq)

    def collect_reports(self) -> None:
        """Request reports from all clients and workers, and wait briefly for them, so that a status is up to date."""
        with self._changed:
            self._changed.wait_for(self._all_clients_connected, _CONNECT_TIMEOUT_S)
            self._report_seq += 1
            number = self._report_seq
            clients, workers = list(self.client_outboxes.values()), list(self.worker_outboxes)
            for client in clients:
                client.messages.put(ClientUpdate(report_seq=number))
            # Clients first: on this request they also acknowledge to the workers what they have consumed.
            self._wait_for_reports(clients, number)
            self._silent_workers(workers)

    def _wait_for_reports(self, outboxes: Sequence[Outbox[Any]], number: int) -> None:
        """Wait briefly until all have answered the request of that number, or streams are to end."""
        self._changed.wait_for(
            lambda: self.stopping.is_set() or all(one.answered_seq >= number for one in outboxes), _REPORT_TIMEOUT_S
        )

    def _all_clients_connected(self) -> bool:
        return all(
            known.cancelled_by or known.client_id in self.client_outboxes for known in self.core.state.clients.values()
        )

    def receipt(self, request: ReceiptRequest) -> Receipt:
        """What was delivered of one epoch of a job.

        Raises:
            NotFoundError: there is no such job or epoch.
        """
        self.collect_reports()
        with self._changed:
            return receipts.requested_receipt(self.core, request)

    def status(self, *, request_reports: bool = True) -> Snapshot:
        """A snapshot of the service.

        Args:
            request_reports: Whether to request new reports from clients and workers first, and wait for them. Without
                it the snapshot costs a fifth, and is up to two seconds old.
        """
        if request_reports:
            self.collect_reports()
        with self._changed:
            self.core.set_time(self._clock())
            self._snapshot_seq += 1
            return snapshot(
                self.core,
                self.statistics,
                self._events,
                self.worker_pool,
                self.split_history,
                self._autoscaling.status if self._autoscaling is not None else None,
                seq=self._snapshot_seq,
                time=time.time(),
                service=self.config.name,
                target=self.target,
                started=self._started_at,
                network=self.config.network,
            )
