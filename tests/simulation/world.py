"""A simulated network, clock and disk, in which a dispatcher, workers and clients run from their real cores.

Theory of operation. There are no threads, sockets or sleeps. A `World` has one queue of actions, each with a time; the
clock is the time of the action that runs. All chance comes from the seed, so a seed always gives the same trace.

A `Process` is a thin shell around real parts of dsnb: it hands messages and timers to them, and sends what they decide.
It decides nothing that dsnb decides.

    process         real parts                                                          its shell in dsnb
    dispatcher.py   `Dispatcher` with its core and a journal in a file                  `dispatcher/rpc.py`
    worker.py       `Task` with its element log, `DispatcherFeed`, the pipeline         `worker/server.py`, `producer`
    client.py       `TaskTable`, `Inbox`, credit accounts, `ConsumptionTracker`         `client/reader.py`

A process can be killed and started again, suspended and resumed (what arrives meanwhile waits), and its clock can jump.
A `Connection` joins two processes. It delivers the messages of each direction in the order of sending, each after some
latency, except for calls and their answers, which overtake other messages and are overtaken; different connections
overtake each other. When it breaks, messages on their way are lost, and so is everything that a side sends until it
notices. Each side notices a while later, at its own time. A dead process notices nothing.

Each member (worker or client) has one connection to the dispatcher, for its reports and its calls. A call has a number.
It is repeated over the next connection if it was not answered, so a request may reach the dispatcher twice. Each client
has one more connection to each worker, on which it reads a task. The life of such a read:

    client to worker          worker to client          what it means
    ReadRequest                                         open the task; I have so many elements of it, send those after
    ReadRequest               FrameSlice                credit for more elements, and how many were consumed
    ReadRequest(recall)       CreditRecalled            give unused credit back, for another task
                              ReadEnd                   everything was sent; elements of other clients may still return
    ReadRequest(leave)        ReadClosed                I consumed so many; the others are free for other clients

If the connection breaks, the client opens the task again over a new one, with what it has received. The worker takes
back what it sent beyond that, and sends it again.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from dsnb.errors import UnavailableError
from dsnb.transfer.protocol import FrameSlice

_RECONNECT_S = 0.1
_REPORT_S = 1.0
_RARE_DELAY = 0.01
"""The part of messages that take up to a second."""


class Call(msgspec.Struct, frozen=True):
    """A request to the dispatcher. A member repeats it, with the same number, until it is answered."""

    number: int
    request: Any


class Reply(msgspec.Struct, frozen=True):
    """The answer to a call; `value` is an exception if the dispatcher refused the request."""

    number: int
    value: Any


class StreamEnded(msgspec.Struct, frozen=True):
    """The dispatcher ended a control stream: without an error, the member connects again."""

    error: Exception | None = None


class World:
    """The clock, the queue of actions and the trace of one simulation.

    Args:
        seed: Determines all latencies, speeds and failures.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.connections: list[Connection] = []
        """The connections that are open."""
        self.opened: Counter[str] = Counter()
        """How many connections of each name were opened."""
        self.sent: dict[str, list[Any]] = {}
        """All messages that were sent between two processes, in either direction, by the name of their connections."""
        self.breaks_at: tuple[str, int] | None = None
        """The name of the connection to break, and the index in `sent` of the message that is on its way then."""
        self.folder = "\0"
        """The folder of the simulated disks, whose name differs from run to run."""
        self.actions = 0
        """How many actions have run."""
        self._queue: list[tuple[float, int, Process, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._trace: list[tuple[float, str, Any]] = []

    def clock(self) -> float:
        """The present time in seconds."""
        return self.now

    def random(self, name: str) -> Random:
        """A source of chance for one purpose: what one purpose draws does not change what another gets."""
        return Random(f"{self.seed} {name}")

    def at(self, time: float, process: Process, action: Callable[[], None]) -> None:
        """Have a process do something at a time, unless it is dead or another process by then."""
        heappush(self._queue, (time, next(self._numbers), process, process.life, action))

    def run(self, is_over: Callable[[], bool], limit_s: float) -> None:
        """Run actions in the order of their times until the world is over. A process is validated after each of its.

        Raises:
            AssertionError: an invariant does not hold, or it is not over in time.
        """
        while not is_over():
            self.now, number, process, life, action = heappop(self._queue)
            assert self.now <= limit_s, f"not over after {limit_s} s"
            if not process.alive or process.life != life:
                continue
            if process.suspended_until > self.now:
                heappush(self._queue, (process.suspended_until, number, process, life, action))
                continue
            self.actions += 1
            action()
            process.settle()
            process.validate()

    def note(self, what: str, message: Any = "") -> None:
        """Add a line to the trace. It is written only when somebody reads the trace, so messages must be immutable."""
        self._trace.append((self.now, what, message))

    def trace(self) -> list[str]:
        """What happened, one line for each event."""
        lines = [f"{time:9.4f}  {what}{describe(message)}" for time, what, message in self._trace]
        return [line.replace(self.folder, "FOLDER") for line in lines]


def describe(message: Any) -> str:
    """A message in one line; fields with their default values are left out."""
    if isinstance(message, FrameSlice):
        return f"FrameSlice(elements {message.index} to {message.index + message.count - 1} of the task)"
    if isinstance(message, bytes):
        return f"{len(message)} bytes"
    if isinstance(message, tuple):
        more = f", and {len(message) - 3} more" if len(message) > 3 else ""
        return f"({', '.join(map(describe, message[:3]))}{more})"
    if not isinstance(message, msgspec.Struct):
        return str(message)
    fields = [
        (field.name, getattr(message, field.name), field.default)
        for field in msgspec.structs.fields(message)
        if not field.name.endswith("_ns")  # measured on the machine that simulates
    ]
    shown = ", ".join(f"{name}={describe(value)}" for name, value, default in fields if value not in (default, ()))
    return f"{type(message).__name__}({shown})"


class Process(ABC):
    """A shell around cores, which reacts to messages, broken connections and its own timers.

    Args:
        world: Where it lives.
        name: Its name in the trace.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.life = 0
        """How many times it was killed."""
        self.suspended_until = 0.0
        self.clock_offset = world.random(f"clock of {name}").uniform(0.0, 1e6)
        self.random = world.random(name)

    def clock(self) -> float:
        """The seconds of its own monotonic clock."""
        return self.world.now + self.clock_offset

    def kill(self) -> None:
        """End it at once. Its connections break."""
        self.world.note(f"{self.name} is killed")
        self.alive = False
        self.life += 1
        self.suspended_until = 0.0
        for connection in list(self.world.connections):
            if connection.joins(self):
                connection.fail()

    def suspend(self, seconds: float) -> None:
        """Stop it for so many seconds."""
        self.world.note(f"{self.name} is suspended for {seconds:.1f} s")
        self.suspended_until = max(self.suspended_until, self.world.now + seconds)

    def settle(self) -> None:
        """Do what follows from an action at once, such as waking a thread that waited."""
        return

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after so many seconds."""
        self.world.at(self.world.now + seconds, self, action)

    @abstractmethod
    def receive(self, connection: Connection, message: Any) -> None:
        """Handle a message that arrived."""

    @abstractmethod
    def lost(self, connection: Connection) -> None:
        """Handle a connection that broke; called some time later."""

    @abstractmethod
    def validate(self) -> None:
        """Check the invariants of its cores."""


class Connection:
    """A connection between two processes, opened by the first one. The opener may find that the other one is dead."""

    def __init__(self, opener: Process, acceptor: Process) -> None:
        self._world = opener.world
        self.name = f"{opener.name}-{acceptor.name}"
        self._ends = (opener, acceptor)
        self._intact = True
        number = self._world.opened[self.name]
        self._world.opened[self.name] += 1
        self._random = self._world.random(f"{self.name} {number}")
        self._latency_s = self._random.uniform(0.0001, 0.005)
        self._last_arrival = {opener.name: 0.0, acceptor.name: 0.0}
        self._world.connections.append(self)
        if not acceptor.alive:
            self.fail()

    @property
    def intact(self) -> bool:
        """Whether it still delivers messages."""
        return self._intact

    def send(self, sender: Process, message: Any) -> None:
        """Send a message to the other end. It arrives after all earlier ones of its stream, or never.

        A call is a stream of its own: what it asks and is answered may overtake other messages, and be overtaken.
        """
        receiver = self._ends[sender is self._ends[0]]
        delay_s = self._latency_s + self._random.expovariate(1 / 0.002)
        if self._random.random() < _RARE_DELAY:
            delay_s += self._random.random()
        arrival = self._world.now + delay_s
        if not isinstance(message, (Call, Reply)):
            arrival = max(self._last_arrival[receiver.name], arrival)
            self._last_arrival[receiver.name] = arrival
        sent = self._world.sent.setdefault(self.name, [])
        if (self.name, len(sent)) == self._world.breaks_at:
            self.fail()
        sent.append(message)
        if self._intact:
            self._world.at(arrival, receiver, lambda: self._deliver(sender, receiver, message))
        else:
            self._world.note(f"lost, {sender.name} to {receiver.name}: ", message)

    def _deliver(self, sender: Process, receiver: Process, message: Any) -> None:
        if isinstance(message, Reply) and receiver.suspended_until == self._world.now > 0:
            # The thread that waits for it may run long after the others of a process that was suspended.
            delay_s = self._random.expovariate(1 / 0.1)
            self._world.at(self._world.now + delay_s, receiver, lambda: self._deliver(sender, receiver, message))
        elif self._intact:
            self._world.note(f"{sender.name} to {receiver.name}: ", message)
            receiver.receive(self, message)
        else:
            self._world.note(f"lost, {sender.name} to {receiver.name}: ", message)

    def fail(self) -> None:
        """Break the connection. The two ends notice it at different times."""
        if self._intact:
            self._world.note(f"the connection {self.name} breaks")
            self._intact = False
            self._world.connections.remove(self)
            for process in self._ends:
                delay_s = self._random.uniform(0.0, self._random.choice((0.005, 0.3)))
                if process.alive:
                    self._world.at(self._world.now + delay_s, process, self._notice_of(process))

    def _notice_of(self, process: Process) -> Callable[[], None]:
        def notice() -> None:
            self._world.note(f"{process.name} notices that the connection {self.name} broke")
            process.lost(self)

        return notice

    def close(self) -> None:
        """End the connection when neither side has anything more to send."""
        if self._intact:
            self._intact = False
            self._world.connections.remove(self)

    def joins(self, process: Process) -> bool:
        """Whether a process is one of its ends."""
        return process in self._ends


class Member(Process):
    """A worker or a client: it keeps a connection to the dispatcher, over which it reports and makes calls."""

    def __init__(self, world: World, name: str, dispatcher: Process) -> None:
        super().__init__(world, name)
        self._dispatcher = dispatcher
        self.dispatcher_connection = Connection(self, dispatcher)
        self._calls: dict[int, tuple[Any, Callable[[Any], None]]] = {}
        self._call_numbers = itertools.count()
        self._cut_off_until = 0.0
        self._suspension_s = 0.0
        """For how long to suspend it at its next call."""

    @abstractmethod
    def report(self) -> Any | None:
        """The report to send to the dispatcher now; None if there is nothing to report yet, or no longer."""

    def call(self, request: Any, handle: Callable[[Any], None]) -> None:
        """Call the dispatcher; `handle` gets the reply, or the error."""
        number = next(self._call_numbers)
        self._calls[number] = request, handle
        self.dispatcher_connection.send(self, Call(number, request))
        if self._suspension_s:
            self.suspend(self._suspension_s)
            self._suspension_s = 0.0

    def suspend_in_call(self, seconds: float) -> None:
        """Stop it for so many seconds when it waits for an answer, which it seldom does at a random moment."""
        self._suspension_s = seconds

    def handle_reply(self, reply: Reply) -> None:
        """Pass a reply on to the caller."""
        _, handle = self._calls.pop(reply.number, (None, None))
        if handle is not None:  # otherwise the reply to an earlier copy of the request has arrived
            handle(reply.value)

    def send_report(self) -> None:
        """Send a report now."""
        report = self.report()
        if report is not None:
            self.dispatcher_connection.send(self, report)

    def report_periodically(self) -> None:
        """Send a report now, and again and again."""
        self.send_report()
        self.later(_REPORT_S, self.report_periodically)

    def lost(self, connection: Connection) -> None:
        """Connect to the dispatcher again, if that is the connection that broke."""
        if connection is self.dispatcher_connection:
            self.later(_RECONNECT_S, self.reconnect)

    def stream_ended(self, ended: StreamEnded) -> None:
        """Handle the end of the control stream. Without an error, or with a passing one, connect again."""
        if ended.error is not None and not isinstance(ended.error, UnavailableError):
            self.refused(ended.error)
            return
        self.dispatcher_connection.close()
        self.later(_RECONNECT_S, self.reconnect)

    def refused(self, error: Exception) -> None:
        """Handle an error with which the dispatcher refuses this member for good."""
        raise AssertionError(f"the dispatcher refused {self.name}: {error}")

    def cut_off(self, seconds: float) -> None:
        """Break the connection to the dispatcher, and let none succeed for so long."""
        self.world.note(f"{self.name} does not reach the dispatcher for {seconds:.1f} s")
        self._cut_off_until = self.world.now + seconds
        self.dispatcher_connection.fail()

    def reconnect(self) -> None:
        """Connect again: the first message is a report, and calls that were not answered are repeated."""
        if self.world.now < self._cut_off_until:
            self.later(_RECONNECT_S, self.reconnect)
            return
        self.dispatcher_connection.close()
        self.dispatcher_connection = Connection(self, self._dispatcher)
        self.send_report()
        for number, (request, _) in self._calls.items():
            self.dispatcher_connection.send(self, Call(number, request))
