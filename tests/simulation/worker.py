"""A simulated worker: real tasks with real pipelines, whose elements are made at simulated times.

It corresponds to `worker/server.py`; `SimProducer` corresponds to `worker/producer.py`, without its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dsnb.elements.frame import Frame, frames_of
from dsnb.errors import CancelledError, DsnbError, NotFoundError, UnavailableError, mark_out_of_band
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.operations.with_options import build_pipeline
from dsnb.pipeline.sharding import sharded
from dsnb.pipeline.sources.elements import Elements
from dsnb.stopwatch import Stopwatch
from dsnb.transfer.protocol import FrameSlice, ReadHandle, Sink
from dsnb.wire import messages as m
from dsnb.wire.control_stream import REPORT_SOON_S
from dsnb.worker.spill import Spill, SpillLimit
from dsnb.worker.splits import DispatcherFeed
from dsnb.worker.task import Task
from tests.simulation.world import Connection, Member, Process, Reply, StreamEnded, World

_READ_AHEAD_BYTES = 240
_CLOSE_S = 5.0
_PAUSE_S = 0.2
"""How long a request for splits waits before it is repeated, if the dispatcher cannot answer."""


class ReadEnd(msgspec.Struct, frozen=True):
    """The worker has sent everything that it has for this reader."""


class CreditRecalled(msgspec.Struct, frozen=True):
    """The answer to a recall: so many elements were sent in all, and no more will follow without new credit."""

    granted: int


class ReadClosed(msgspec.Struct, frozen=True):
    """The answer to a reader that leaves."""


class ReadFailed(msgspec.Struct, frozen=True):
    """The worker refused the read, or ended it."""

    error: Exception


class NoReplyYet(Exception):
    """A feed needs splits that the dispatcher has yet to give."""

    def __init__(self, request: m.SplitsRequest) -> None:
        super().__init__()
        self.request = request


class SimSink(Sink):
    """The worker's end of a client's connection."""

    def __init__(self, worker: SimWorker, connection: Connection) -> None:
        self._worker = worker
        self._connection = connection

    def deliver(self, frame_slice: FrameSlice) -> None:
        self._connection.send(self._worker, frame_slice)

    def end(self) -> None:
        self._connection.send(self._worker, ReadEnd())

    def recalled(self, granted: int) -> None:
        self._connection.send(self._worker, CreditRecalled(granted))

    def progress(self, complete_rounds: int, oldest_round: int) -> None:
        raise AssertionError("coordinated reads are not simulated")

    def fail(self, error: Exception) -> None:
        self._connection.send(self._worker, ReadFailed(error))


class SimFeed:
    """Requests splits for one task: a request without a reply yet ends the pull, which is repeated with the reply."""

    def __init__(self, worker: SimWorker, order: m.TaskOrder) -> None:
        self.reply: m.SplitsReply | None = None
        self.feed = DispatcherFeed(
            order.task_id,
            order.num_providers,
            self._ask,
            order.position.splits if order.position else (),
            order.incarnation,
            clock=worker.world.clock,
        )

    def _ask(self, request: m.SplitsRequest) -> m.SplitsReply:
        reply, self.reply = self.reply, None
        if reply is None:
            raise mark_out_of_band(NoReplyYet(request))
        return reply


class SimProducer:
    """Runs one pipeline: each frame takes simulated time. Has what a task uses of `Producer`."""

    ident = None

    def __init__(
        self,
        worker: SimWorker,
        feed: SimFeed | None,
        name: str,
        build: Callable[[], Stage],
        receiver: Task,
        _error_context: str,
        *,
        packed: bool,
        seek: Callable[[Stage], None],
    ) -> None:
        assert not packed
        self.stage: Stage | None = None
        self.one_to_one = True
        self.positioned = False
        self._worker = worker
        self._feed = feed
        self._build = build
        self._seek = seek
        self._task = receiver
        self._random = worker.world.random(f"{worker.uid} {name} {receiver.order.incarnation}")
        self._element_s = worker.pace * self._random.choice((0.0005, 0.004, 0.03))
        self._busy = False

    def start(self) -> None:
        """Begin to produce soon."""
        self._busy = True
        self._worker.producers.append(self)
        self._worker.later(0.0, self._begin)

    def _begin(self) -> None:
        self.stage = self._build()
        _stop_clocks(self.stage)
        self.stage.enable_inline_calls()
        self._seek(self.stage)
        self.positioned = True
        self._produce()

    def close(self) -> None:
        """End the pipeline."""
        if self.stage is not None:
            self.stage.close()

    def wake(self) -> None:
        """Produce on, if the task wants more again."""
        if not self._busy and self._task.wants_frame():
            self._busy = True
            self._worker.later(0.0, self._produce)

    def _produce(self) -> None:
        """Make one frame; or stop, until the task wants it or the dispatcher has given splits."""
        assert self.stage is not None
        if not self._task.wants_frame():
            self._busy = False
            return
        try:
            run = as_list(self.stage.pull(self._random.randint(1, 8)))
        except NoReplyYet as wait:
            self._request(wait.request)
            return
        except CancelledError:
            return
        if not run:
            self._task.finish()
            return
        self._task.on_pulled(len(run))
        self._worker.made(self._task.order, run)
        self._task.add(*[part for part in frames_of(run, None) if isinstance(part, Frame)])
        self._worker.later(len(run) * self._element_s, self._produce)

    def _request(self, request: m.SplitsRequest) -> None:
        assert self._feed is not None
        feed = self._feed

        def handle(reply: Any) -> None:
            if isinstance(reply, NotFoundError):
                return  # the task belongs to another worker now
            if isinstance(reply, DsnbError):
                self._worker.later(_PAUSE_S, lambda: self._request(request))
                return
            feed.reply = reply
            self._produce()

        self._worker.call(request, handle)


def _stop_clocks(stage: Stage) -> None:
    """Let pulls take no time: what they take on this machine must not influence a simulation."""
    stage.stopwatch = Stopwatch(lambda: 0)  # the one place where a stage meets the clock of this machine
    for source in stage.inputs:
        _stop_clocks(source)


class SimWorker(Member):
    """A worker.

    Args:
        world: Where it lives.
        name: Its name in the trace; another process with the same address may follow it.
        dispatcher: The dispatcher.
        dataset: The registered dataset, which a real worker fetches from the dispatcher.
        folder: Where it spills.
        window_bytes: The capacity of the cross-trainer cache.
        pace: How many times longer than usual it takes for an element.
    """

    def __init__(
        self,
        world: World,
        name: str,
        dispatcher: Process,
        dataset: Dataset,
        folder: Path,
        window_bytes: int,
        pace: float = 1.0,
    ) -> None:
        super().__init__(world, name, dispatcher)
        self.uid = f"uid-{name}"
        self.pace = pace
        self.address = name
        self.tasks: dict[str, Task] = {}
        self.producers: list[SimProducer] = []
        self.elements: dict[tuple[str, int], list[int]] = {}
        """The elements that were made, for each task and incarnation."""
        self.draining = False
        self._dataset = dataset
        self._folder = folder
        self._window_bytes = window_bytes
        self._read_of: dict[Connection, tuple[Task, ReadHandle]] = {}
        """The task that each client's connection reads, and its end of the read."""
        self._waiting: dict[Connection, list[m.ReadRequest]] = {}
        """Messages of clients whose task is being fetched."""
        self._instance = ""
        self._last_release = 0
        self._last_reports: list[m.TaskReport] = []
        self._leaving = False
        self._drain_deadline = 0.0
        self.report_periodically()

    def made(self, order: m.TaskOrder, run: Sequence[Any]) -> None:
        """Note the elements that a task has made."""
        self.elements.setdefault((order.task_id, order.incarnation), []).extend(map(int, run))

    def report(self) -> m.WorkerReport:
        tasks = list(self.tasks.values())
        last, self._last_reports = self._last_reports, []
        for task in tasks:
            task.tick(self.clock())
        return m.WorkerReport(
            uid=self.uid,
            address=self.address,
            tasks=(*(_untimed(task.report()) for task in tasks), *last),
            ended=tuple(task.order.task_id for task in tasks if task.done),
            leaving=self._leaving,
            draining=self.draining,
            last_release=self._last_release,
        )

    def receive(self, connection: Connection, message: Any) -> None:
        match message:
            case Reply():
                self.handle_reply(message)
            case StreamEnded():
                if self._leaving:
                    self.kill()  # its last report has arrived
                else:
                    self.stream_ended(message)
            case m.WorkerOrder():
                self._obey(message)
            case m.ReadRequest(client_id=""):
                self._handle(message, connection)
            case m.ReadRequest():
                self._open(message, connection)
            case _:
                raise AssertionError(f"nobody sends {message} to a worker")

    def settle(self) -> None:
        for producer in self.producers:
            producer.wake()
        if self.draining and not self._leaving and self._idle():
            self.leave()

    def validate(self) -> None:
        """The logs of its tasks validate themselves in tests of `SharedLog`."""

    # ---- leaving

    def drain(self) -> None:
        """Accept no new work, and leave when the readers have consumed what it has."""
        self.draining = True
        self._drain_deadline = self.world.now + 3.0
        self.send_report()

    def _idle(self) -> bool:
        over = self.world.now > self._drain_deadline
        return not any(task.order.mode == "DYNAMIC" or not over for task in self.tasks.values())

    def leave(self) -> None:
        """Return all elements and stop, as a worker does that was asked to stop."""
        self.world.note(f"{self.name} leaves")
        gone = UnavailableError(f"the worker {self.name} was stopped")
        for task in self.tasks.values():
            task.stop(gone)
        self._leaving = True
        self.send_report()
        self.later(_CLOSE_S, self.kill)

    def kill(self) -> None:
        super().kill()
        for task in self.tasks.values():
            task.stop(UnavailableError("killed"))  # frees its spill file; nobody hears it
        for producer in self.producers:
            producer.close()
        self.producers.clear()

    # ---- orders

    def _obey(self, order: m.WorkerOrder) -> None:
        if self._leaving:
            return
        if order.welcome:
            self._adopt(order.instance)
        for task_order in order.start:
            started = self._start_task(task_order)
            if started.order.incarnation == task_order.incarnation:
                started.pause(paused=task_order.paused)
        for dropped in order.drop:
            self._drop(dropped.task_id, dropped.incarnation)
        for release in order.releases:
            consumed = {(known.task_id, known.incarnation): known.received for known in release.holdings}
            for task in self.tasks.values():
                count = consumed.get((task.order.task_id, task.order.incarnation))
                task.leave(release.client_id, count, died=release.died)
            self._last_release = max(self._last_release, release.number)
        self._close_tasks(order.closed)
        if order.report_seq:
            self.send_report()
        elif order.releases:
            self._report_soon()

    def _report_soon(self) -> None:
        self.later(REPORT_SOON_S, self.send_report)

    def _adopt(self, instance: str) -> None:
        if self._instance not in ("", instance):
            for task in list(self.tasks.values()):
                self._drop(task.order.task_id, task.order.incarnation)
        self._instance = instance

    def _close_tasks(self, iterations: Sequence[m.ClosedIteration]) -> None:
        for closed in iterations:
            task = self.tasks.get(closed.task_id)
            if task is not None and task.order.incarnation == closed.incarnation:
                task.close_to_new_trainers([(client.client_id, client.trainer_id) for client in closed.clients])

    def _drop(self, task_id: str, incarnation: int) -> None:
        task = self.tasks.get(task_id)
        if task is not None and task.order.incarnation <= incarnation:
            del self.tasks[task_id]
            task.stop(UnavailableError(f"the task {task_id} was taken off worker {self.name}"))
            self._last_reports.append(_untimed(task.drop()))

    def _start_task(self, order: m.TaskOrder) -> Task:
        known = self.tasks.get(order.task_id)
        if known is not None and known.order.incarnation >= order.incarnation:
            return known
        if known is not None:
            self._drop(order.task_id, known.order.incarnation)
        feed = SimFeed(self, order) if order.mode == "DYNAMIC" else None
        task = self.tasks[order.task_id] = Task(
            order,
            lambda _allocator: self._build(order, feed.feed if feed is not None else None),
            feed.feed if feed is not None else None,
            read_ahead_bytes=_READ_AHEAD_BYTES,
            capacity=self._window_bytes,
            on_change=lambda: self.later(0.0, self.send_report),
            on_end=self._report_soon,
            error_context="",
            spill=Spill(str(self._folder), SpillLimit(1 << 20)) if order.cached else None,
            make_producer=partial(SimProducer, self, feed),
        )
        return task

    def _build(self, order: m.TaskOrder, feed: DispatcherFeed | None) -> Stage:
        context = BuildContext(
            entropy=order.entropy,
            iteration_path=(order.iteration,),
            splits=feed,
            low_latency=True,
            shared_order=order.num_shards > 0,
        )
        if order.position is not None and order.position.ended:
            return Elements(run=()).build(replace(context, splits=None))
        operation = sharded(self._dataset.operation, order.mode, order.num_shards, order.shard)
        return build_pipeline(operation, context)

    # ---- readers

    def _open(self, opening: m.ReadRequest, connection: Connection) -> None:
        """Serve a client. If it came before the order of its task, fetch the order."""

        waiting = self._waiting[connection] = []

        def begin(order: Any) -> None:
            del self._waiting[connection]
            try:
                if isinstance(order, Exception):
                    raise order
                if self._leaving:
                    raise UnavailableError(f"the worker {self.name} is stopping")
                task = self._start_task(order)
                if opening.incarnation not in (0, task.order.incarnation):
                    raise UnavailableError("the reader expects another incarnation")
                sink = SimSink(self, connection)
                self._read_of[connection] = task, task.open(opening, sink)
            except DsnbError as error:
                connection.send(self, ReadFailed(error))
            for message in waiting:
                self._handle(message, connection)

        if opening.instance not in ("", self._instance):
            begin(UnavailableError("the service was restarted"))
            return
        known = self.tasks.get(opening.task_id)
        if known is not None and known.order.incarnation >= opening.incarnation:
            begin(known.order)
        else:
            self.call(m.TaskRequest(task_id=opening.task_id), begin)

    def _handle(self, request: m.ReadRequest, connection: Connection) -> None:
        """Handle a later message of a client. A task ignores an older connection's: the client has a newer one."""
        if connection in self._waiting:
            self._waiting[connection].append(request)
            return
        _, read = self._read_of.get(connection, (None, None))
        if request.leave:
            if read is not None:
                read.leave(request.consumed)
            connection.send(self, ReadClosed())
        elif read is not None and request.recall:
            read.recall()
        elif read is not None:
            read.credit(request.granted, request.consumed, request.max_bytes, request.received, request.dequeued)

    def lost(self, connection: Connection) -> None:
        super().lost(connection)  # a worker that is leaving connects again too, until its last report has arrived
        self._read_of.pop(connection, None)


def _untimed(report: m.TaskReport) -> m.TaskReport:
    """A task's report without what was measured on this machine, so that a seed always gives the same bytes."""
    trainers = tuple(replace(trainer, in_flight_ns=0) for trainer in report.trainers)
    return replace(report, stages=(), trainers=trainers)
