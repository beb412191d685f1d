"""The simulated dispatcher: turns messages into events for the real core, and its instructions into messages.

It corresponds to `dispatcher/service.py` and `rpc.py`, without the journal, the lock and the statistics.
"""

from __future__ import annotations

from typing import Any

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.state import Task
from dsnb.errors import DsnbError, NotFoundError
from dsnb.wire import messages as m
from tests.simulation.world import Call, Connection, Process, Reply, World

JOB = "one epoch"
SERVICE = "simulated"
CONFIG = DispatcherConfig()


class SimDispatcher(Process):
    """A dispatcher with one registered dataset.

    Args:
        world: Where it lives.
        splits: How many splits the dataset has.
    """

    def __init__(self, world: World, splits: int) -> None:
        super().__init__(world, "dispatcher")
        self.core = Core(CONFIG, now=world.now)
        self.losses: list[r.TaskLost] = []
        self._streams: dict[str, Connection] = {}
        """The control streams, by the worker's uid or the client's id."""
        self._decide(e.DispatcherStarts(instance=SERVICE))
        self.dataset_id = self._register(splits)
        self._tick()

    def _register(self, splits: int) -> str:
        registered = self._decide(
            e.RegisterDataset(
                dataset_id="", fingerprint="f", definition="d", blobs=(), element_spec="", cardinality=-2,
                compression="AUTO", pipeline="simulated", providers=(("simulated", splits),), unsplittable_reason="",
            )
        )  # fmt: skip
        return str(registered.dataset_id)

    @property
    def iteration_finished(self) -> bool:
        """Whether the dispatcher counts the epoch as finished."""
        job = self.core.state.jobs.get(JOB)
        return job is not None and 0 in job.iterations and job.iterations[0].finished

    def validate(self) -> None:
        self.core.validate()

    # ---- events and instructions

    def _decide(self, event: e.Event) -> Any:
        """Have the core handle an event, and carry out its instructions.

        Raises:
            DsnbError: the caller's mistake, as found by the core.
        """
        decision = self.core.handle(event, self.world.now)
        assert decision.bug is None, decision.bug
        for record in decision.records:
            self.world.note("  dispatcher records ", record)
        for instruction in decision.instructions:
            self._carry_out(instruction)
        if decision.error is not None:
            raise decision.error
        return decision.reply

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.StartTask() | e.UpdateTask():
                order = self._task_order(self.core.state.tasks[instruction.task_id])
                self._send(instruction.worker, m.WorkerOrder(start=(order,)))
            case e.DropTask():
                self._send(instruction.worker, m.WorkerOrder(drop=(instruction.task_id,)))
            case e.ReleaseClient(client_id=client_id, number=number, died=died):
                release = m.ClientRelease(client_id=client_id, number=number, died=died)
                self._send(instruction.worker, m.WorkerOrder(releases=(release,)))
            case e.RequestReport():
                self._send(instruction.worker, m.WorkerOrder(report_seq=1))
            case e.NotifyClients():
                self._notify_clients(instruction.job, instruction.iteration)
            case e.NotifyLoss():
                self.losses.append(instruction.loss)
            case e.Announce():
                self.world.note(f"  dispatcher announces: {instruction.text}")
            case _:
                raise AssertionError(f"no scenario leads to {instruction}")

    def _send(self, member: str, message: Any) -> None:
        if member in self._streams:
            self._streams[member].send(self, message)

    def _notify_clients(self, job: str, iteration: int) -> None:
        for client in self.core.state.iteration(job, iteration).clients:
            self._send(client, self._client_update(job, iteration))

    def _tick(self) -> None:
        self._decide(e.Tick())
        self.later(CONFIG.job_gc_check_interval_ms / 1000, self._tick)

    # ---- messages that arrive

    def receive(self, connection: Connection, message: Any) -> None:
        if isinstance(message, Call):
            try:
                value = self._answer(message.request)
            except DsnbError as error:
                value = error
            connection.send(self, Reply(message.number, value))
        elif isinstance(message, m.WorkerReport):
            self._handle_worker_report(connection, message)
        else:
            self._handle_client_report(connection, message)

    def lost(self, connection: Connection) -> None:
        for member, stream in list(self._streams.items()):
            if stream is connection:  # otherwise it has a newer one
                del self._streams[member]
                is_worker = member in self.core.state.workers
                self._decide(e.WorkerDisconnected(uid=member) if is_worker else e.ClientDisconnected(client_id=member))

    def _answer(self, request: Any) -> Any:
        match request:
            case m.JoinRequest():
                return self._join(request)
            case m.EndRequest():
                return self._confirm_end(request)
            case m.SplitsRequest():
                splits = self._decide(
                    e.SplitsRequested(
                        task_id=request.task_id, incarnation=request.incarnation, provider=request.provider,
                        repetition=request.repetition, cursor=request.cursor, want=request.want,
                    )
                )  # fmt: skip
                return m.SplitsReply(first=splits.first, end=splits.end, done=splits.done)
            case m.TaskRequest():
                task = self.core.state.tasks.get(request.task_id)
                return self._task_order(task) if task is not None else NotFoundError("the task is unknown")
            case _:
                raise AssertionError(f"no member sends {request}")

    def _join(self, request: m.JoinRequest) -> m.JoinReply:
        joined = self._decide(
            e.Join(
                dataset_id=request.dataset_id, job_name=request.job_name, mode=request.mode, cached=request.cached,
                trainer_id=request.trainer_id, compression=request.compression, target_workers=request.target_workers,
                iteration=request.iteration, previous_client_id=request.previous_client_id,
                previous_iteration=request.previous_iteration, holdings=request.holdings,
            )
        )  # fmt: skip
        return m.JoinReply(
            client_id=joined.client_id, job_name=joined.job, iteration=joined.iteration, finished=joined.finished,
            tasks=self._task_infos(joined.job, joined.iteration), loss_count=joined.loss_count, instance=SERVICE,
        )  # fmt: skip

    def _confirm_end(self, request: m.EndRequest) -> m.EndReply:
        assert request.final_report is not None
        elements = request.final_report.elements
        finished = self._decide(e.TasksReadToEnd(client_id=request.client_id, ended=request.ended, elements=elements))
        client = self.core.state.clients[request.client_id]
        if not finished:
            return m.EndReply(tasks=self._task_infos(client.job, client.iteration))
        if len(self.core.state.iteration(client.job, client.iteration).clients) == 1:
            self._decide(e.ClientLeaves(client_id=request.client_id, holdings=request.final_report.holdings))
            return m.EndReply(finished=True, position=m.IterationPosition())
        return m.EndReply(finished=True)

    def _handle_worker_report(self, connection: Connection, report: m.WorkerReport) -> None:
        if self._streams.get(report.uid) is not connection:
            self._streams[report.uid] = connection
            self._decide(
                e.WorkerArrives(
                    uid=report.uid, name=report.name, address=report.address, isolation="process", pid=0,
                    tasks=tuple(task.task_id for task in report.tasks), grants=_reported_grants(report),
                )
            )  # fmt: skip
        self._decide(
            e.WorkerReported(
                uid=report.uid,
                ended=report.ended,
                progress={task.task_id: _progress(task) for task in report.tasks},
                clients=frozenset(client for task in report.tasks for client in task.clients),
                last_release=report.last_release,
            )
        )

    def _handle_client_report(self, connection: Connection, report: m.ClientReport) -> None:
        if report.client_id not in self.core.state.clients:
            return  # it was released when its end was confirmed, and did not know that yet
        if report.leaving:
            self._decide(e.ClientLeaves(client_id=report.client_id, holdings=report.holdings))
            self._streams.pop(report.client_id, None)
            return
        self._decide(e.ClientHeartbeat(client_id=report.client_id))
        if self._streams.get(report.client_id) is not connection:
            self._streams[report.client_id] = connection
            client = self.core.state.clients[report.client_id]
            connection.send(self, self._client_update(client.job, client.iteration))

    # ---- messages that are sent

    def _client_update(self, job: str, iteration: int) -> m.ClientUpdate:
        finished = self.core.state.iteration(job, iteration).finished
        return m.ClientUpdate(has_state=True, tasks=self._task_infos(job, iteration), finished=finished)

    def _task_infos(self, job: str, iteration: int) -> tuple[m.TaskInfo, ...]:
        tasks = [self.core.state.tasks[task] for task in self.core.state.iteration(job, iteration).tasks]
        return tuple(
            m.TaskInfo(
                task_id=task.task_id, worker=self.core.state.worker_name(task), worker_uid=task.worker,
                incarnation=task.incarnation, ended=task.ended, unassigned=task.unassignment is not None,
                sequence_incarnation=task.sequence_incarnation,
            )
            for task in tasks
        )  # fmt: skip

    def _task_order(self, task: Task) -> m.TaskOrder:
        job = self.core.state.jobs[task.job]
        return m.TaskOrder(
            task_id=task.task_id, dataset_id=job.dataset_id, job_name=job.name, iteration=task.iteration,
            incarnation=task.incarnation, mode=job.mode,
            num_providers=len(self.core.state.iteration(job.name, task.iteration).providers),
        )  # fmt: skip


def _progress(task: m.TaskReport) -> e.Progress:
    return e.Progress(
        incarnation=task.incarnation,
        splits_done=task.splits_done,
        trainers=tuple(
            m.TrainerPosition(trainer_id=trainer.trainer_id, offset=trainer.offset, consumed=trainer.consumed_beyond)
            for trainer in task.trainers
        ),
        exhausted=task.exhausted,
        sent={link.client_id: link.sent for link in task.links},
        lost_readers={reader.client_id: reader.consumed for reader in task.lost_readers},
    )


def _reported_grants(report: m.WorkerReport) -> tuple[e.ReportedGrant, ...]:
    return tuple(
        e.ReportedGrant(
            task_id=task.task_id, provider=grant.provider, repetition=grant.repetition, cursor=grant.cursor,
            first=grant.first, end=grant.end,
        )
        for task in report.tasks
        for grant in task.grants
    )  # fmt: skip
