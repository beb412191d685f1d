"""A simulated worker: it asks for splits, adds elements to a real log, and sends them as credit allows.

It corresponds to `worker/server.py`, `task.py` and `producer.py`. Its pipeline yields integers: split n has the
elements from `ELEMENTS_PER_SPLIT * n` on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from dsnb.elements.frame import Frame, frames_of
from dsnb.errors import NotFoundError
from dsnb.wire import messages as m
from dsnb.wire.link import LinkReport
from dsnb.worker.reporting import RateMeter, trainer_reports
from dsnb.worker.shared_log import SharedLog
from dsnb.worker.splits import DispatcherFeed
from tests.simulation.world import Connection, Member, Process, Reply, World

ELEMENTS_PER_SPLIT = 10
_ELEMENT_BYTES = 8
_READ_AHEAD_BYTES = 30 * _ELEMENT_BYTES
_SHARED_TRAINER_ID = ""


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


class Session:
    """One client's read of a task."""

    def __init__(self, opening: m.ReadRequest, connection: Connection) -> None:
        self.client_id = opening.client_id
        self.connection = connection
        self.sent = opening.received
        self.end_sent = False


class SimTask:
    """A task of one worker: its log, its splits and its readers."""

    def __init__(self, worker: SimWorker, order: m.TaskOrder) -> None:
        self.order = order
        self.log = SharedLog(
            capacity=1 << 20, read_ahead_bytes=_READ_AHEAD_BYTES, keep=False, incarnation=order.incarnation
        )
        self.sessions: dict[str, Session] = {}
        self.lost_clients: dict[str, int] = {}
        """For each client that the dispatcher declared dead: how many elements it is known to have consumed."""
        self._worker = worker
        self._random = worker.world.random(f"task {order.task_id}")
        self._element_s = self._random.choice((0.0005, 0.004, 0.03))
        self._feed = DispatcherFeed(
            order.task_id, order.num_providers, self._ask, incarnation=order.incarnation, clock=worker.world.clock
        )
        self._runs: Iterator[tuple[int, int]] = self._feed.open(0)
        self._reply: m.SplitsReply | None = None
        self.elements: list[int] = []
        """All elements that were added to the log."""
        self._next_elements: deque[int] = deque()
        """Elements of the present run of splits that are not in the log yet."""
        self._producing = False
        self._end_noted = False
        self._rates = RateMeter()

    # ---- readers

    def open(self, opening: m.ReadRequest, connection: Connection) -> None:
        """Begin to serve a client, or continue after its connection broke."""
        client = opening.client_id
        if client in self.lost_clients:
            connection.send(self._worker, ReadFailed(NotFoundError(f"the reader {client} was given up")))
            return
        self.log.attach(client, _SHARED_TRAINER_ID, opening.received, opening.consumed)
        self.sessions[client] = Session(opening, connection)
        self.log.credit(client, opening.granted, opening.consumed, opening.max_bytes)
        self._elements_may_flow()

    def handle(self, request: m.ReadRequest, connection: Connection) -> None:
        """Handle a later message of a client. An older connection's is ignored: the client has opened a newer one."""
        session = next((one for one in self.sessions.values() if one.connection is connection), None)
        if request.leave:
            connection.send(self._worker, ReadClosed())
        if session is None:
            return
        client = session.client_id
        if request.leave:
            self.leave(client, request.consumed)
        elif request.recall:
            connection.send(self._worker, CreditRecalled(self.log.recall(client)))
        else:
            self.log.credit(
                client, request.granted, request.consumed, request.max_bytes,
                received=request.received, taken=request.dequeued,
            )  # fmt: skip
            self._elements_may_flow()

    def leave(self, client: str, consumed: int | None = None, *, died: bool = False) -> None:
        """End a client's reading; its unconsumed elements go to the other clients."""
        self.sessions.pop(client, None)
        if died:
            self.lost_clients[client] = self.log.consumed_by(client)
        self.log.leave(client, consumed)
        self._elements_may_flow()

    def _elements_may_flow(self) -> None:
        for session in self.sessions.values():
            self._pump(session)
        if not self._producing and self.log.wants_more():
            self._producing = True
            self._worker.later(0.0, self._produce)
        if self.log.done and not self._end_noted:
            self._end_noted = True
            self._worker.send_report()

    def _pump(self, session: Session) -> None:
        for frame_slice in self.log.take_all(session.client_id):
            session.sent += frame_slice.count
            session.end_sent = False
            session.connection.send(self._worker, frame_slice)
        if not session.end_sent and self.log.at_end(session.client_id):
            session.end_sent = True
            session.connection.send(self._worker, ReadEnd())

    # ---- the producer

    def _produce(self) -> None:
        """Add one frame; or stop, until there is room for it or the dispatcher has given splits."""
        if not self.log.wants_more():
            self._producing = False
            return
        if not self._next_elements:
            try:
                first, end = next(self._runs)
            except NoReplyYet as wait:
                self._worker.call(wait.request, self._handle_splits)
                return
            except StopIteration:
                self.log.finish()
                self._elements_may_flow()
                return
            self._feed.mark_produced(self.log.head)
            self._next_elements.extend(range(ELEMENTS_PER_SPLIT * first, ELEMENTS_PER_SPLIT * end))
        count = min(self._random.randint(1, 8), len(self._next_elements))
        elements = [self._next_elements.popleft() for _ in range(count)]
        self.elements += elements
        frame = _frame_of(elements)
        self.log.append(frame, count, frame.nbytes)
        self._elements_may_flow()
        self._worker.later(count * self._element_s, self._produce)

    def _ask(self, request: m.SplitsRequest) -> m.SplitsReply:
        """Give the feed the dispatcher's reply. Without one it raises; the feed repeats the request later."""
        reply, self._reply = self._reply, None
        if reply is None:
            raise NoReplyYet(request)
        return reply

    def _handle_splits(self, reply: Any) -> None:
        assert isinstance(reply, m.SplitsReply), reply
        self._reply = reply
        self._produce()

    def report(self) -> m.TaskReport:
        """The task's report to the dispatcher."""
        if self.log.finished:
            self._feed.end(self.log.head)
        trainers = trainer_reports(self.log, self._rates, lambda _name: 0)
        consumed = max((trainer.offset for trainer in trainers), default=0)
        return m.TaskReport(
            task_id=self.order.task_id,
            head=self.log.head,
            trainers=trainers,
            splits_done=self._feed.done(consumed),
            clients=tuple(self.log.clients),
            grants=self._feed.grants(),
            links=tuple(LinkReport(client_id=one.client_id, sent=one.sent) for one in self.sessions.values()),
            exhausted=self.log.exhausted,
            incarnation=self.order.incarnation,
            lost_readers=tuple(
                m.LostReader(client_id=client, consumed=consumed) for client, consumed in self.lost_clients.items()
            ),
        )


class SimWorker(Member):
    """A worker."""

    def __init__(self, world: World, name: str, dispatcher: Process) -> None:
        super().__init__(world, name, dispatcher)
        self.uid = f"simulated-{name}"
        self.tasks: dict[str, SimTask] = {}
        self._task_of: dict[Connection, SimTask] = {}
        """The task that each client's connection reads."""
        self._last_release = 0
        self.report_periodically()

    def report(self) -> m.WorkerReport:
        tasks = self.tasks.values()
        return m.WorkerReport(
            uid=self.uid,
            name=self.name,
            address=self.name,
            tasks=tuple(task.report() for task in tasks),
            ended=tuple(task.order.task_id for task in tasks if task.log.done),
            last_release=self._last_release,
        )

    def receive(self, connection: Connection, message: Any) -> None:
        match message:
            case Reply():
                self.handle_reply(message)
            case m.WorkerOrder():
                self._obey(message)
            case m.ReadRequest(client_id=""):
                if connection in self._task_of:
                    self._task_of[connection].handle(message, connection)
            case m.ReadRequest():
                self._open(message, connection)
            case _:
                raise AssertionError(f"nobody sends {message} to a worker")

    def validate(self) -> None:
        for task in self.tasks.values():
            task.log.validate()

    def _obey(self, order: m.WorkerOrder) -> None:
        for task_order in order.start:
            self._start_task(task_order)
        for task_id in order.drop:
            self.tasks.pop(task_id, None)
        for release in order.releases:
            consumed = {(known.task_id, known.incarnation): known.received for known in release.holdings}
            for task in self.tasks.values():
                count = consumed.get((task.order.task_id, task.order.incarnation))
                task.leave(release.client_id, count, died=release.died)
            self._last_release = max(self._last_release, release.number)
        if order.releases or order.report_seq:
            self.send_report()

    def _start_task(self, order: m.TaskOrder) -> SimTask:
        known = self.tasks.get(order.task_id)
        if known is None or known.order.incarnation != order.incarnation:
            known = self.tasks[order.task_id] = SimTask(self, order)
        return known

    def _open(self, opening: m.ReadRequest, connection: Connection) -> None:
        """Serve a client. If it came before the order of its task, fetch the order."""

        def begin(task_order: Any) -> None:
            if isinstance(task_order, Exception):
                connection.send(self, ReadFailed(task_order))
                return
            task = self._task_of[connection] = self._start_task(task_order)
            task.open(opening, connection)

        known = self.tasks.get(opening.task_id)
        if known is not None and known.order.incarnation >= opening.incarnation:
            begin(known.order)
        else:
            self.call(m.TaskRequest(task_id=opening.task_id), begin)


def _frame_of(elements: list[int]) -> Frame:
    (frame,) = frames_of(elements, None)
    assert isinstance(frame, Frame)
    return frame
