"""A simulated client: it joins the job, reads all tasks through a real task table, and confirms the end.

It corresponds to `client/reader.py`. Its user takes one element at a time and works on it for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from dsnb.client.consumption import ConsumptionTracker
from dsnb.client.inbox import Inbox, TaskRead
from dsnb.client.options import ReadOptions, ShardingPolicy
from dsnb.client.tasks import TaskTable
from dsnb.errors import DsnbError, UnavailableError
from dsnb.transfer import local
from dsnb.transfer.protocol import FrameSlice, LinkStats, ReadHandle, Sink, TaskServer
from dsnb.wire import messages as m
from tests.simulation.dispatcher import JOB, SimDispatcher
from tests.simulation.worker import CreditRecalled, ReadClosed, ReadEnd, ReadFailed, SimWorker
from tests.simulation.world import Connection, Member, Reply, World

_CONFIRM_S = 0.2


class SimClient(Member):
    """A client.

    Args:
        world: Where it lives.
        name: Its name in the trace.
        dispatcher: The dispatcher.
        credit: Its `max_outstanding_requests`.
    """

    def __init__(self, world: World, name: str, dispatcher: SimDispatcher, credit: int) -> None:
        super().__init__(world, name, dispatcher)
        self._dataset_id = dispatcher.dataset_id
        self.client_id = ""
        self.consumed: list[int] = []
        """The elements that the user received."""
        self.over = False
        """Whether the client has left the job at the end."""
        self.may_exceed_credit = False
        """Whether a task delivered again after its end."""
        self.reads: dict[Connection, SimRead] = {}
        """The open reads of tasks."""
        self._options = ReadOptions(mode=ShardingPolicy.DYNAMIC, job_name=JOB, max_outstanding_requests=credit)
        self._inbox = Inbox(world.clock)
        self.tasks = TaskTable(self._inbox, "", self._options, "token")
        self.consumption = ConsumptionTracker(self.tasks)
        self._slice: tuple[TaskRead, int] | None = None
        """The task that the present frame slice came from, and the bytes of one element."""
        self._elements: deque[int] = deque()
        """The elements of the present slice that the user has not received."""
        self._element_s = self.random.choice((0.0005, 0.003, 0.02))
        self._turn = 0
        """The number of the turn that is due; turns with other numbers were replaced by an earlier one."""
        self._waiting = False
        self._confirming = False
        self._confirm_at = 0.0
        self._released = False
        self._leaving = False
        self._last_holdings: tuple[m.TaskHolding, ...] = ()
        request = m.JoinRequest(
            dataset_id=dispatcher.dataset_id, job_name=JOB, mode="DYNAMIC", compression="NONE", target_workers="AUTO"
        )
        self.call(request, self._joined)

    def _joined(self, reply: Any) -> None:
        assert isinstance(reply, m.JoinReply), reply
        self.client_id = reply.client_id
        self.tasks = TaskTable(self._inbox, reply.client_id, self._options, "token", reply.instance)
        self.consumption.reset(self.tasks)
        self.consumption.tracked = True
        self.tasks.set_tasks(reply.tasks, finished=reply.finished)
        self.report_periodically()
        self._take_turn()

    def report(self) -> m.ClientReport | None:
        if not self.client_id or self._released:
            return None
        elements = self.consumption.consumed
        if self._leaving:
            holdings = self._last_holdings
            return m.ClientReport(client_id=self.client_id, elements=elements, leaving=True, holdings=holdings)
        return m.ClientReport(client_id=self.client_id, elements=elements)

    # ---- messages

    def receive(self, connection: Connection, message: Any) -> None:
        match message:
            case Reply():
                self.handle_reply(message)
            case m.ClientUpdate():
                self._inbox.update(message)
            case _:
                self.reads[connection].receive(message)
        self._wake()

    def lost(self, connection: Connection) -> None:
        super().lost(connection)
        read = self.reads.pop(connection, None)
        if read is not None:
            read.sink.fail(UnavailableError("the connection broke"))
            self.leave_if_closed()
            self._wake()

    def validate(self) -> None:
        """Check the credit: what is buffered and in flight never exceeds `max_outstanding_requests`.

        There is one exception. A task that has ended may deliver again, elements that another client did not consume.
        Its worker may use credit for them that this client has granted to another task meanwhile.
        """
        limit = self._options.max_outstanding_requests
        accounts = [read.sink.task_read.account for read in self.reads.values()]
        assert all(account.consumed <= account.dequeued <= account.received for account in accounts)
        assert all(account.received <= account.granted for account in accounts), "elements came without credit"
        assert limit is not None
        outstanding = sum(account.outstanding for account in accounts)
        assert outstanding <= limit or self.may_exceed_credit, "more credit than there is"

    # ---- the user's thread

    def _wake(self) -> None:
        if self._waiting:
            self._take_turn_after(0.0)

    def _take_turn_after(self, seconds: float) -> None:
        self._turn += 1
        number = self._turn
        self.later(seconds, lambda: self._take_turn() if number == self._turn else None)

    def _take_turn(self) -> None:
        """What a call of `next` does: handle what has arrived, then return an element, or wait for more."""
        self._waiting = False
        if self._leaving:
            return
        self._handle_events()
        due = self.tasks.maintain(self.world.now)
        if self._elements or self._take_slice():
            self._consume()
            self._take_turn_after(self.random.expovariate(1 / self._element_s))
            return
        if self.tasks.all_ended:
            self._confirm_end()
            due = min(due, max(self._confirm_at, self.world.now + 0.001))
        else:
            self.tasks.raise_byte_limits()
        self.tasks.flush_acks(self.world.now)
        self._waiting = True
        self._take_turn_after(due - self.world.now)

    def _handle_events(self) -> None:
        while self._inbox.failed:
            sink, error = self._inbox.failed.popleft()
            lasting = self.tasks.handle_broken(sink, error)
            assert lasting is None, lasting
        updates = list(self._inbox.updates)
        self._inbox.updates.clear()
        self.tasks.apply_updates(updates)

    def _take_slice(self) -> bool:
        found = self._inbox.next()
        if found is None:
            return False
        task_read, piece = found
        task_read.attempts = 0
        self._slice = task_read, piece.nbytes // piece.count
        self._elements.extend(map(int, piece.elements()))
        return True

    def _consume(self) -> None:
        """Give the user one element, and acknowledge it."""
        assert self._slice is not None
        element = self._elements.popleft()
        self.world.note(f"  {self.name} consumes {element}")
        self.consumed.append(element)
        task_read, nbytes = self._slice
        self.consumption.add_delivered(task_read, 1, nbytes)
        self.consumption.mark_consumed(1)
        self.tasks.flush_acks(self.world.now)

    # ---- the end

    def _confirm_end(self) -> None:
        """Ask the dispatcher whether the iteration is over."""
        if self._confirming or self.world.now < self._confirm_at:
            return
        self._confirming = True
        final = m.ClientReport(
            client_id=self.client_id, elements=self.consumption.consumed, leaving=True,
            holdings=self.tasks.consumed_holdings(),
        )  # fmt: skip
        request = m.EndRequest(client_id=self.client_id, ended=self.tasks.ended_tasks(), final_report=final)
        self.call(request, self._handle_end_reply)

    def _handle_end_reply(self, reply: Any) -> None:
        self._confirming = False
        self._confirm_at = self.world.now + _CONFIRM_S
        if isinstance(reply, DsnbError):
            self._rejoin(reply)
        elif not reply.finished:
            self.tasks.set_tasks(reply.tasks)
        elif not self._inbox.ready:
            self._leave(released=reply.position is not None)

    def _rejoin(self, error: DsnbError) -> None:
        """Ask for the iteration again: the dispatcher has released this client, because its end was confirmed."""
        self.world.note(f"{self.name} was released: {error}")

        def joined(reply: Any) -> None:
            assert isinstance(reply, m.JoinReply), reply
            assert reply.finished, "a client was taken for dead"
            self.client_id = reply.client_id
            self._leave(released=False)

        request = m.JoinRequest(
            dataset_id=self._dataset_id, job_name=JOB, mode="DYNAMIC", compression="NONE",
            target_workers="AUTO", previous_client_id=self.client_id, holdings=self.tasks.consumed_holdings(),
        )  # fmt: skip
        self._confirming = True
        self.call(request, joined)

    def _leave(self, *, released: bool) -> None:
        """Leave all tasks. The dispatcher hears of it when all workers know what was consumed."""
        self._released = released
        self._leaving = True
        self._last_holdings = self.tasks.consumed_holdings()
        self.tasks.close()
        self.leave_if_closed()

    def leave_if_closed(self) -> None:
        """Leave the job, if all reads are closed."""
        if self._leaving and not self.reads and not self.over:
            self.over = True
            self.send_report()


class SimRead(ReadHandle):
    """The client's end of a connection on which it reads a task."""

    def __init__(self, client: SimClient, worker: SimWorker, request: m.ReadRequest, sink: Sink) -> None:
        self.sink = sink
        self._client = client
        self._connection = Connection(client, worker)
        client.reads[self._connection] = self
        self._send(request)

    def _send(self, request: m.ReadRequest) -> None:
        self._connection.send(self._client, request)

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0) -> None:
        self._send(
            m.ReadRequest(granted=granted, consumed=consumed, max_bytes=max_bytes, received=received, dequeued=dequeued)
        )

    def recall(self) -> None:
        self._send(m.ReadRequest(recall=True))

    def leave(self, consumed: int) -> None:
        self._send(m.ReadRequest(leave=True, consumed=consumed))

    def receive(self, message: Any) -> None:
        """Handle a message of the worker."""
        match message:
            case FrameSlice():
                self._client.may_exceed_credit |= self.sink.task_read.account.ended
                self.sink.deliver(message)
            case ReadEnd():
                self.sink.end()
            case CreditRecalled():
                self.sink.recalled(message.granted)
            case ReadFailed():
                self._close()
                self.sink.fail(message.error)
            case ReadClosed():
                self._close()
                self._client.leave_if_closed()

    def _close(self) -> None:
        del self._client.reads[self._connection]
        self._connection.close()


class SimTaskServer(TaskServer):
    """The way to one worker, for the task tables of all clients."""

    def __init__(self, worker: SimWorker, clients: list[SimClient]) -> None:
        self._worker = worker
        self._clients = clients

    def open(self, request: m.ReadRequest, sink: Sink, _link_stats: LinkStats | None = None) -> ReadHandle:
        (client,) = [client for client in self._clients if client.client_id == request.client_id]
        return SimRead(client, self._worker, request, sink)

    def offer(self) -> None:
        """Let task tables find the worker, as they find one in their own process."""
        local.offer(self._worker.uid, self)
