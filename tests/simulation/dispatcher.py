"""The simulated dispatcher: turns messages into events for the real core, and its instructions into messages.

It corresponds to `dispatcher/service.py` and `rpc.py`, without the journal, the lock and the statistics.
"""

from __future__ import annotations

from typing import Any

from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.handlers import orders
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
        self.losses: list[m.Loss] = []
        self._streams: dict[str, Connection] = {}
        """The control streams, by the worker's uid or the client's id."""
        self._decide(e.DispatcherStarts(instance=SERVICE))
        self.dataset_id = self._register(splits)
        self._tick()

    def _register(self, splits: int) -> str:
        registered = self._decide(
            e.RegisterDataset(
                dataset_id="",
                definition="d",
                info=m.DatasetInfo(
                    fingerprint="f",
                    cardinality=-2,
                    compression="AUTO",
                    pipeline="simulated",
                    providers=(m.SplitProvider(source="simulated", count=splits),),
                ),
            )
        )
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
                order = orders.task_order(self.core, self.core.state.tasks[instruction.task_id])
                self._send(instruction.worker, m.WorkerOrder(start=(order,)))
            case e.DropTask():
                self._send(instruction.worker, m.WorkerOrder(drop=(instruction.task_id,)))
            case e.ReleaseClient():
                self._send(instruction.worker, m.WorkerOrder(releases=(instruction.release,)))
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
            self._send(client, orders.client_update(self.core, job, iteration))

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
        if not isinstance(request, m.TaskRequest):
            return self._decide(request)
        task = self.core.state.tasks.get(request.task_id)
        return orders.task_order(self.core, task) if task is not None else NotFoundError("the task is unknown")

    def _handle_worker_report(self, connection: Connection, report: m.WorkerReport) -> None:
        if self._streams.get(report.uid) is not connection:
            self._streams[report.uid] = connection
            self._decide(e.WorkerArrives(report=report))
        self._decide(report)

    def _handle_client_report(self, connection: Connection, report: m.ClientReport) -> None:
        if report.client_id not in self.core.state.clients:
            return  # it was released when its end was confirmed, and did not know that yet
        self._decide(report)
        if report.leaving:
            self._streams.pop(report.client_id, None)
        elif self._streams.get(report.client_id) is not connection:
            self._streams[report.client_id] = connection
            client = self.core.state.clients[report.client_id]
            connection.send(self, orders.client_update(self.core, client.job, client.iteration))
