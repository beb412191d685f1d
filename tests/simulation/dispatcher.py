"""The simulated dispatcher: a real `Dispatcher` with its journal in a file, and the messages that reach it.

It corresponds to `dispatcher/rpc.py`. Its disk can fill up, and it can be killed at any time, also while it writes. The
next one finds what SQLite had written until then.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import msgspec

from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.handlers import orders, positions
from dsnb.dispatcher.handlers.jobs import unknown_client_error
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.service import Dispatcher, Outbox
from dsnb.errors import DsnbError, UnavailableError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.determinism import inexact_reason
from dsnb.pipeline.sharding import made_deterministic
from dsnb.pipeline.splits import keeps_split_order, split_providers
from dsnb.wire import messages as m
from tests.simulation.world import Call, Connection, Process, Reply, StreamEnded, World

JOB = "one epoch"
CONFIG = DispatcherConfig(job_gc_check_interval_ms=500)


class _Stream(msgspec.Struct):
    """A member's control stream."""

    member: str
    is_worker: bool
    outbox: Outbox[Any]


class SimDispatcher(Process):
    """A dispatcher with one registered dataset.

    Args:
        world: Where it lives.
        folder: Where its journals are.
        dataset: The dataset.
    """

    def __init__(self, world: World, folder: Path, dataset: Dataset) -> None:
        super().__init__(world, "dispatcher")
        self._folder = folder
        self._journal_number = 0
        self._streams: dict[Connection, _Stream] = {}
        self._ended: set[Connection] = set()
        """The connections whose control streams the dispatcher has ended."""
        self.announced: list[str] = []
        """All that dispatchers announced."""
        self._seen_events = 0
        self._boot()
        self.dataset_id = self._register(dataset)

    @property
    def core(self) -> Core:
        """The core of the present dispatcher."""
        return self.service.core

    @property
    def _path(self) -> Path:
        return self._folder / f"journal{self._journal_number}.db"

    def _boot(self) -> None:
        self.service = Dispatcher(
            CONFIG, Journal(self._path), clock=self.clock, entropy=lambda: self.random.getrandbits(63)
        )
        self._seen_events = 0
        self._tick()

    def _register(self, dataset: Dataset) -> str:
        operation = dataset.operation
        providers = [m.SplitProvider(source=part.source, count=part.count) for part in split_providers(operation)]
        info = m.DatasetInfo(
            fingerprint="f",
            cardinality=dataset.cardinality(),
            compression="AUTO",
            pipeline="simulated",
            providers=tuple(providers),
            inexact_reason=inexact_reason(operation, sources_have_positions=False),
            inexact_shard_reason=inexact_reason(made_deterministic(operation), sources_have_positions=False),
            in_split_order=keeps_split_order(operation),
        )
        registered = self.service.handle(e.RegisterDataset(dataset_id="", definition="d", info=info))
        return str(registered.dataset_id)

    @property
    def iteration_finished(self) -> bool:
        """Whether the dispatcher counts the epoch as finished."""
        job = self.core.state.jobs.get(JOB)
        return job is not None and 0 in job.iterations and job.iterations[0].finished

    @property
    def losses(self) -> list[m.Loss]:
        """The losses of the epoch that are recorded."""
        job = self.core.state.jobs.get(JOB)
        return list(job.iterations[0].losses) if job is not None and 0 in job.iterations else []

    def validate(self) -> None:
        self.core.validate()

    # ---- faults

    def kill(self) -> None:
        """End it at once; its successor gets the files as they are now."""
        self._note_events()
        super().kill()
        self._streams.clear()
        before = self._path
        self._journal_number += 1
        for ending in ("", "-wal"):
            source = before.with_name(before.name + ending)
            if source.exists():
                shutil.copyfile(source, self._path.with_name(self._path.name + ending))
        self.service.journal.close()

    def lose_power(self, part: float) -> None:
        """Kill it with its machine: the end of what was not synced is lost, and the last page is torn.

        Args:
            part: The part of the write-ahead log that survives.
        """
        self.kill()
        log = self._path.with_name(self._path.name + "-wal")
        if log.exists():
            with log.open("r+b") as file:
                file.truncate(int(part * log.stat().st_size))

    def restart(self) -> None:
        """Start it again, from its journal."""
        self.world.note("the dispatcher starts again")
        self.alive = True
        self._boot()

    def fill_disk(self) -> None:
        """Let nothing more be written until `free_disk`."""
        self.world.note("the dispatcher's disk is full")
        database = self.service.journal.database
        pages = database.value("PRAGMA page_count")
        database.execute(f"PRAGMA max_page_count = {pages}")

    def free_disk(self) -> None:
        """Let it write again."""
        if self.alive:
            self.service.journal.database.execute("PRAGMA max_page_count = 1000000")

    # ---- events

    def _tick(self) -> None:
        with suppress(UnavailableError):
            self.service.tick()
        self._flush()
        self.later(CONFIG.job_gc_check_interval_ms / 1000, self._tick)

    def _flush(self) -> None:
        """Send what the dispatcher has put into the queues of its control streams."""
        self._note_events()
        for connection, stream in list(self._streams.items()):
            while connection in self._streams:
                try:
                    message = stream.outbox.messages.get_nowait()
                except Empty:
                    break
                if message is None or isinstance(message, Exception):
                    self._end_stream(connection, message)
                else:
                    connection.send(self, message)

    def _end_stream(self, connection: Connection, error: Exception | None) -> None:
        connection.send(self, StreamEnded(error))
        self._ended.add(connection)
        self._forget_stream(connection)

    def _forget_stream(self, connection: Connection) -> None:
        """Note that a stream has ended; the member has some time to come back."""
        stream = self._streams.pop(connection, None)
        if stream is None:
            return
        outboxes = self.service.worker_outboxes if stream.is_worker else self.service.client_outboxes
        if outboxes.get(stream.member) is stream.outbox:
            event = (
                e.WorkerDisconnected(uid=stream.member)
                if stream.is_worker
                else e.ClientDisconnected(client_id=stream.member)
            )
            with suppress(UnavailableError):
                self.service.handle(event)

    def _note_events(self) -> None:
        events = self.service.events  # a snapshot at each message would take most of the time
        for event in events[self._seen_events :]:
            self.announced.append(event.text)
            self.world.note(f"  dispatcher announces: {event.text}")
        self._seen_events = len(events)

    # ---- messages that arrive

    def receive(self, connection: Connection, message: Any) -> None:
        if isinstance(message, Call):
            try:
                value = self._answer(message.request)
            except DsnbError as error:
                value = error
            connection.send(self, Reply(message.number, value))
        elif connection in self._streams:
            self._handle_report(connection, message)
        elif connection not in self._ended:  # otherwise a report that was sent before the member knew of the end
            self._open_stream(connection, message)
        self._flush()

    def lost(self, connection: Connection) -> None:
        self._forget_stream(connection)
        self._flush()

    def _answer(self, request: Any) -> Any:
        service = self.service
        match request:
            case m.TaskRequest():
                return orders.requested_task_order(self.core, request.task_id)
            case m.PositionRequest():
                if request.client_id not in self.core.state.clients:
                    raise unknown_client_error(request.client_id)
                return positions.iteration_position(self.core, request.client_id)
            case m.EndRequest():
                return service.confirm_end(request)
            case m.JoinRequest():
                joined = service.handle(request)
                service.client_joined(joined.client_id, joined.job_name, request.trainer_id)
                return joined
            case _:
                return service.handle(request)

    def _open_stream(self, connection: Connection, first: Any) -> None:
        try:
            if isinstance(first, m.WorkerReport):
                self._open_worker_stream(connection, first)
            else:
                self._open_client_stream(connection, first)
        except DsnbError as error:
            self._end_stream(connection, error)

    def _open_worker_stream(self, connection: Connection, first: m.WorkerReport) -> None:
        service, outbox = self.service, Outbox[m.WorkerOrder]()
        old = service.worker_outboxes.get(first.uid)
        if old is not None:
            old.messages.put(None)
        service.worker_outboxes[first.uid] = outbox
        name = service.handle(e.WorkerArrives(report=first))
        service.worker_reported(first)
        self._streams[connection] = _Stream(first.uid, is_worker=True, outbox=outbox)
        connection.send(self, m.WorkerOrder(welcome=True, name=name, instance=self.core.state.instance))

    def _open_client_stream(self, connection: Connection, first: m.ClientReport) -> None:
        service, outbox = self.service, Outbox[m.ClientUpdate]()
        if first.instance != self.core.state.instance or first.client_id not in self.core.state.clients:
            raise unknown_client_error(first.client_id)
        old = service.client_outboxes.get(first.client_id)
        if old is not None:
            old.messages.put(None)
        service.client_outboxes[first.client_id] = outbox
        service.client_reported(first)
        self._streams[connection] = _Stream(first.client_id, is_worker=False, outbox=outbox)
        client = self.core.state.clients.get(first.client_id)
        if client is not None:
            update = orders.client_update(
                self.core, client.job, client.iteration, losses_received=first.losses_received
            )
            outbox.messages.put(update)

    def _handle_report(self, connection: Connection, report: Any) -> None:
        try:
            if isinstance(report, m.WorkerReport):
                if report.draining:
                    self.service.handle(e.WorkerDrains(uid=report.uid))
                self.service.worker_reported(report)
                if report.leaving:
                    self.service.handle(e.WorkerLeaves(uid=report.uid))
                    self._end_stream(connection, None)
            else:
                self.service.client_reported(report)
        except DsnbError:
            self._end_stream(connection, None)  # the member connects again, and gets the error then if it persists
