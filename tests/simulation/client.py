"""A simulated client: it joins the job, reads all tasks through a real task table, and confirms the end.

It corresponds to `client/reader.py`. Its user takes one element at a time and works on it for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from dsnb.client.consumption import ConsumptionTracker
from dsnb.client.inbox import Inbox, TaskRead
from dsnb.client.options import ReadOptions
from dsnb.client.tasks import TaskTable
from dsnb.errors import DsnbError, NotFoundError, UnavailableError
from dsnb.transfer import local
from dsnb.transfer.protocol import FrameSlice, LinkStats, ReadHandle, Sink, TaskServer
from dsnb.wire import messages as m
from tests.simulation.dispatcher import CONFIG, JOB, SimDispatcher
from tests.simulation.worker import CreditRecalled, ReadClosed, ReadEnd, ReadFailed, SimWorker
from tests.simulation.world import Connection, Member, Reply, StreamEnded, World
from tests.support.element_hash import element_hash

_CONFIRM_S = 0.2
_ACK_S = 0.01
_CLOSE_READS_S = 2.0
_CLOSE_STREAM_S = 5.0
_LEASE_S = 0.75 * CONFIG.client_timeout_ms / 1000


class Consumed(NamedTuple):
    """An element that a user received, and its place in the sequence of its task."""

    element: int
    task_id: str
    incarnation: int
    index: int


class SimClient(Member):
    """A client.

    Args:
        world: Where it lives.
        name: Its name in the trace.
        dispatcher: The dispatcher.
        options: The arguments of its read.
        element_s: How long its user works on an element, in seconds.
    """

    def __init__(
        self, world: World, name: str, dispatcher: SimDispatcher, options: ReadOptions, element_s: float
    ) -> None:
        super().__init__(world, name, dispatcher)
        self._simulated_dispatcher = dispatcher
        self._dataset_id = dispatcher.dataset_id
        self.client_id = ""
        self.options = options
        self.history: list[Consumed] = []
        """The elements that the user received, in order."""
        self.over = False
        """Whether the client has left the job at the end."""
        self.unheard = False
        """Whether the dispatcher could not hear that it left."""
        self.rejoined = False
        """Whether it was counted as lost and returned."""
        self.reads: dict[Connection, SimRead] = {}
        """The open reads of tasks."""
        self._inbox = Inbox(self.clock)
        assert self._inbox.poller is not None
        self._inbox.poller.close()
        self._inbox.poller = None  # there are no sockets
        self.tasks = TaskTable(self._inbox, "", options, "token")
        self.consumption = ConsumptionTracker(self.tasks, keeps_digest=True)
        self._slice: tuple[TaskRead, int, int, int] | None = None
        """Of the present frame slice: its task, the bytes of one element, the sequence, and the next index."""
        self._elements: deque[int] = deque()
        """The elements of the present slice that the user has not received."""
        self._element_s = element_s
        self._joined: m.JoinReply | None = None
        self._turn = 0
        """The number of the turn that is due; turns with other numbers were replaced by an earlier one."""
        self._waiting = self._acknowledging = False
        self._busy = True
        """Whether the user's thread waits for an answer of the dispatcher."""
        self._confirm_at = 0.0
        self._released = self._leaving = False
        self._last_holdings: tuple[m.TaskHolding, ...] = ()
        self._halted: tuple[m.TaskInfo, ...] = ()
        self._losses_received = 0
        self._reported_at = self.clock()
        self._lapsed = False
        self.call(self._join_request(), self._handle_joined)

    @property
    def consumed(self) -> list[int]:
        """The elements that the user received."""
        return [one.element for one in self.history]

    @property
    def iteration(self) -> int:
        """The number of the iteration that it reads; -1 before it has joined."""
        return self._joined.iteration if self._joined is not None else -1

    def _join_request(self, holdings: tuple[m.TaskHolding, ...] = ()) -> m.JoinRequest:
        before = self._joined
        return m.JoinRequest(
            dataset_id=self._dataset_id, job_name=JOB, mode=self.options.mode.name, compression="NONE",
            target_workers="AUTO", cached=self.options.cached, trainer_id=self.options.trainer_id,
            complete_only=self.options.lossless, holdings=holdings,
            previous_client_id=before.client_id if before else "", previous_iteration=before.iteration if before else 0,
        )  # fmt: skip

    def _handle_joined(self, reply: Any) -> None:
        no_workers = isinstance(reply, DsnbError) and "no workers to divide" in str(reply)
        if no_workers or isinstance(reply, UnavailableError):  # its user tries again
            self.later(_CONFIRM_S, lambda: self.call(self._join_request(), self._handle_joined))
            return
        assert isinstance(reply, m.JoinReply), reply
        self._start_reading(reply)
        self.report_periodically()

    def _start_reading(
        self, reply: m.JoinReply, previous_holdings: tuple[m.TaskHolding, ...] = (), previous: str = ""
    ) -> None:
        """Read the tasks of an iteration that the client has joined."""
        lost = self.tasks.lost
        self.client_id, self._joined = reply.client_id, reply
        self._losses_received = reply.loss_count if not previous else min(self._losses_received, reply.loss_count)
        self._halted = ()
        self.tasks = TaskTable(
            self._inbox, reply.client_id, self.options, "token", reply.instance, previous_holdings, previous
        )
        self.tasks.lost = lost
        self.consumption.reset(self.tasks)
        self.consumption.tracked = True
        self._renew()
        self._busy = False
        if reply.finished:
            self._leave(released=False)
        else:
            self.tasks.set_tasks(reply.tasks)
            self.tasks.maintain(self.clock())
            self._take_turn()

    # ---- reports

    def report(self) -> m.ClientReport | None:
        if not self.client_id or self._released or self._joined is None:
            return None
        self._lapsed = self._lapsed_now
        self._reported_at = self.clock()
        holdings = self._last_holdings if self.over else self.tasks.fence(self._halted)
        return m.ClientReport(
            client_id=self.client_id, elements=self.consumption.consumed, digest=self.consumption.digest,
            lost=self.tasks.lost, leaving=self.over,
            losses_received=self._losses_received, instance=self._joined.instance, holdings=holdings,
            unreachable_workers=self.tasks.unreachable_workers,
        )  # fmt: skip

    @property
    def _lapsed_now(self) -> bool:
        return self._lapsed or self.clock() - self._reported_at > _LEASE_S

    def _renew(self) -> None:
        self._reported_at, self._lapsed = self.clock(), False

    def refused(self, error: Exception) -> None:
        self._inbox.set_refusal(error)

    # ---- messages

    def receive(self, connection: Connection, message: Any) -> None:
        match message:
            case Reply():
                self.handle_reply(message)
            case StreamEnded():
                if not self._leaving:
                    self.stream_ended(message)
            case m.ClientUpdate():
                self._handle_update(message)
            case _:
                if connection in self.reads:
                    self.reads[connection].receive(message)
        self._wake()

    def _handle_update(self, update: m.ClientUpdate) -> None:
        if update.has_state:
            self._halted = tuple(task for task in update.tasks if task.unassigned)
            if self._halted:
                self.send_report()
        if update.report_seq:
            self.tasks.send_acks()
            self.send_report()
        self._losses_received += len(update.losses)
        if update.has_state or update.losses or update.skipping or update.running_workers:
            self._inbox.update(update)

    def lost(self, connection: Connection) -> None:
        if not self.over:
            super().lost(connection)
        read = self.reads.pop(connection, None)
        if read is not None:
            read.sink.fail(UnavailableError("the connection broke"))
            self.leave_if_closed()
            self._wake()

    def validate(self) -> None:
        """Check the credit: what is granted, in flight and buffered never exceeds `max_outstanding_requests`."""
        limit = self.options.max_outstanding_requests
        accounts = [task_read.account for task_read in self.tasks.reads.values()]
        assert all(account.consumed <= account.dequeued <= account.received for account in accounts)
        assert all(account.received <= account.granted for account in accounts), "elements came without credit"
        assert limit is None or self.tasks.outstanding <= limit, "more credit than there is"

    # ---- the user's thread

    def _wake(self) -> None:
        if self._waiting:
            self._take_turn_after(0.0)

    def _take_turn_after(self, seconds: float) -> None:
        self._turn += 1
        number = self._turn
        self.later(max(0.0, seconds), lambda: self._take_turn() if number == self._turn else None)

    def _take_turn(self) -> None:
        """What a call of `next` does: handle what has arrived, then return an element, or wait for more."""
        self._waiting = False
        if self._leaving or self._busy:
            return
        if self._inbox.refusal is not None or self._lapsed_now:
            self._check_registered()
            return
        self._handle_events()
        now = self.clock()
        due = self.tasks.maintain(now)
        if self._elements or self._take_slice():
            self._consume()
            self._take_turn_after(self.random.expovariate(1 / self._element_s))
            return
        if self.tasks.all_ended:
            if self._confirm_at <= now:
                self._confirm_end()
                return
            due = min(due, self._confirm_at)
        else:
            self.tasks.raise_byte_limits()
        self.tasks.flush_acks(now)
        self._waiting = True
        self._take_turn_after(max(0.001, due - now))

    def _handle_events(self) -> None:
        while self._inbox.failed:
            sink, error = self._inbox.failed.popleft()
            lasting = self.tasks.handle_broken(sink, error)
            assert lasting is None, lasting
        updates = list(self._inbox.updates)
        self._inbox.updates.clear()
        self.tasks.apply_updates(updates)
        unreachable = self.tasks.give_up_unreachable(updates)
        assert not unreachable, f"workers were given up that clients reach: {unreachable}"

    def _take_slice(self) -> bool:
        found = self._inbox.next()
        if found is None:
            return False
        task_read, piece = found
        task_read.reset_attempts()
        sequence = min(piece.incarnation, task_read.info.sequence_incarnation)
        self._slice = task_read, piece.nbytes // piece.count, sequence, piece.index
        self._elements.extend(map(int, piece.elements()))
        return True

    def _consume(self) -> None:
        """Give the user one element, and acknowledge it a little later."""
        assert self._slice is not None
        element = self._elements.popleft()
        task_read, nbytes, sequence, index = self._slice
        self._slice = task_read, nbytes, sequence, index + 1
        self.world.note(f"  {self.name} consumes {element}, number {index} of task {task_read.info.task_id}")
        self.history.append(Consumed(element, task_read.info.task_id, sequence, index))
        self.consumption.add_delivered(task_read, 1, nbytes, [element_hash(element)])
        self.consumption.mark_consumed(1)
        if self.options.max_outstanding_requests:
            self.tasks.flush_acks(self.clock())
        elif not self._acknowledging:
            self._acknowledging = True
            self.later(_ACK_S, self._acknowledge)

    def _acknowledge(self) -> None:
        self._acknowledging = False
        self.tasks.send_acks()

    # ---- a client that may have been counted as lost

    def _check_registered(self) -> None:
        """Ask the dispatcher whether it has dropped this client; join again if it has."""
        self._busy = True
        if self._inbox.refusal is not None:
            assert isinstance(self._inbox.refusal, NotFoundError), self._inbox.refusal
            self._rejoin()
            return

        def handle(reply: Any) -> None:
            if isinstance(reply, NotFoundError):
                self._rejoin()
                return
            if not isinstance(reply, DsnbError):
                self._renew()
            self._busy = False
            self._take_turn_after(0.0 if not isinstance(reply, DsnbError) else _CONFIRM_S)

        self.call(m.PositionRequest(client_id=self.client_id), handle)

    def _rejoin(self) -> None:
        self.world.note(f"{self.name} was counted as lost, and joins again")
        self._busy = self.rejoined = True
        counts = self.tasks.consumed_counts()
        lost = self.tasks.orphaned_count()
        holdings = (*self.tasks.consumed_holdings(counts), *self.tasks.orphaned_holdings())
        self.tasks.close()
        self.tasks.lost += lost
        before = self.client_id
        request = self._join_request(holdings)

        def handle(reply: Any) -> None:
            if isinstance(reply, UnavailableError):
                self.later(_CONFIRM_S, lambda: self.call(request, handle))
            elif isinstance(reply, NotFoundError):
                self._leave(released=True)  # the iteration no longer exists, so it was over
            else:
                assert isinstance(reply, m.JoinReply), reply
                self._inbox.reset()
                self._elements.clear()
                self._slice = None
                self._start_reading(reply, holdings, before)
                self.reconnect()

        self.call(request, handle)

    # ---- the end

    def _confirm_end(self) -> None:
        """Ask the dispatcher whether the iteration is over."""
        self._busy = True
        assert self._joined is not None
        final = m.ClientReport(
            client_id=self.client_id, elements=self.consumption.consumed, digest=self.consumption.digest,
            leaving=True, lost=self.tasks.lost,
            losses_received=self._losses_received, instance=self._joined.instance,
            holdings=self.tasks.consumed_holdings(),
        )  # fmt: skip
        request = m.EndRequest(client_id=self.client_id, ended=self.tasks.ended_tasks(), final_report=final)
        self.call(request, self._handle_end_reply)

    def _handle_end_reply(self, reply: Any) -> None:
        self._busy = False
        self._confirm_at = self.clock() + _CONFIRM_S
        if isinstance(reply, NotFoundError):
            self._rejoin()
            return
        assert not isinstance(reply, DsnbError) or isinstance(reply, UnavailableError), reply
        if isinstance(reply, m.EndReply) and reply.finished:
            if not self._inbox.ready:
                self._leave(released=reply.position is not None)
                return
        elif isinstance(reply, m.EndReply):
            self.tasks.set_tasks(reply.tasks)
            self.tasks.reopen_ended()
        self._take_turn_after(0.0)

    def _leave(self, *, released: bool) -> None:
        """Leave all tasks. The dispatcher hears of it when all workers know what was consumed."""
        self._handle_events()  # losses that were announced meanwhile
        self._released = released
        self._last_holdings = (*self.tasks.consumed_holdings(leaving=True), *self.tasks.orphaned_holdings())
        self._leaving = True
        self.tasks.close()
        self.leave_if_closed()
        self.later(_CLOSE_READS_S, lambda: self.leave_if_closed(at_once=True))

    def leave_if_closed(self, *, at_once: bool = False) -> None:
        """Leave the job, if all reads are closed or none of them is waited for any longer; then the process ends."""
        if self._leaving and (at_once or not self.reads) and not self.over:
            self.over = True
            self.send_report()
            self.later(_CLOSE_STREAM_S, self._exit)

    def _exit(self) -> None:
        """End, although the last report may not have arrived: the client then counts as lost."""
        dispatcher = self._simulated_dispatcher
        self.unheard = not dispatcher.alive or self.client_id in dispatcher.core.state.clients
        self.kill()


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
