"""One epoch of a simulated service, read by two clients from two workers, with one failure in the middle."""

from __future__ import annotations

from enum import Enum

from dsnb.transfer import local
from dsnb.wire.ranges import split_ranges
from tests.simulation.client import SimClient, SimTaskServer
from tests.simulation.dispatcher import SimDispatcher
from tests.simulation.worker import ELEMENTS_PER_SPLIT, ReadEnd, SimWorker
from tests.simulation.world import World

SPLITS = 40
ELEMENTS = SPLITS * ELEMENTS_PER_SPLIT
LIMIT_S = 20.0
"""Most simulated seconds that an epoch may take; a client that dies before it is known costs 10 of them."""


class Failure(Enum):
    """What goes wrong in an epoch."""

    NOTHING = "nothing"
    CONNECTION = "a connection breaks, but not one on which a task has been read to its end"
    CONNECTION_AT_END = "a connection breaks on which a task has been read to its end"
    CLIENT = "a client dies"


class Epoch:
    """A dispatcher, two workers and two clients.

    Args:
        seed: Determines everything, including the moment of the failure and whom it hits.
        failure: What goes wrong.
    """

    def __init__(self, seed: int, failure: Failure) -> None:
        self.world = World(seed)
        chance = self.world.random("epoch")
        self._credit = chance.choice((1, 4, 16, 64))
        self._dies_after = chance.randrange(ELEMENTS)
        """How many elements are consumed before a client dies."""
        self._victim = chance.randrange(2)
        self._failure = failure
        if failure in {Failure.CONNECTION, Failure.CONNECTION_AT_END}:
            self.world.breaks_at = _choose_message(seed, at_end=failure is Failure.CONNECTION_AT_END)
        self.dispatcher = SimDispatcher(self.world, SPLITS)
        self.workers = [SimWorker(self.world, name, self.dispatcher) for name in ("w1", "w2")]
        self.dead: SimClient | None = None
        self.clients: list[SimClient] = []
        for name in ("c1", "c2"):
            self._add_client(name)
        self.unacknowledged: list[int] = []
        """The elements that the dead client consumed, but no worker knows that."""

    def run(self) -> None:
        """Run the epoch to its end.

        Raises:
            AssertionError: an invariant does not hold, or the epoch does not end.
        """
        endpoints = [SimTaskServer(worker, self.clients) for worker in self.workers]
        try:
            for endpoint in endpoints:
                endpoint.offer()
            if self._failure is Failure.CLIENT:
                self.world.run(lambda: len(self.consumed) >= self._dies_after, LIMIT_S)
                self._kill(self.clients[self._victim])
            self.world.run(lambda: self._all_left, LIMIT_S)
            if self.dead is not None and not self.dispatcher.iteration_finished:
                # The others had left before the death was noticed: what the dead client held waits for a successor.
                self._add_client("c3")
            self.world.run(lambda: self._all_left and self.dispatcher.iteration_finished, LIMIT_S)
        finally:
            for worker in self.workers:
                local.withdraw(worker.uid)

    def _add_client(self, name: str) -> None:
        self.clients.append(SimClient(self.world, name, self.dispatcher, self._credit))

    def _kill(self, victim: SimClient) -> None:
        self.world.note(f"{victim.name} dies")
        self.dead, victim.alive = victim, False
        for connection in self.world.connections:
            if connection.joins(victim):
                connection.fail()
        self.unacknowledged = self._unacknowledged_by(victim)

    def _unacknowledged_by(self, client: SimClient) -> list[int]:
        """The elements that a client consumed, as far as no acknowledgement has reached a worker."""
        tasks = {task_id: task for worker in self.workers for task_id, task in worker.tasks.items()}
        found = []
        for holding in client.tasks.consumed_holdings():
            task = tasks[holding.task_id]
            consumed = [(part.first, part.end) for part in holding.consumed]
            _, unknown = split_ranges(consumed, task.log.consumed_by(client.client_id))
            found += [task.elements[index] for first, end in unknown for index in range(first, end)]
        return found

    @property
    def consumed(self) -> list[int]:
        """All elements that users received."""
        return [element for client in self.clients for element in client.consumed]

    @property
    def _all_left(self) -> bool:
        """Whether all clients have left or are known to be dead."""
        left = all(client.over or not client.alive for client in self.clients)
        return left and not self.dispatcher.core.state.clients


def _choose_message(seed: int, *, at_end: bool) -> tuple[str, int]:
    """Choose a message during which a connection breaks: its connection, and its number there.

    The epoch runs without a failure first, to see which messages there are. Until the failure, the second run is the
    same, because the seed is. All connections are equally likely, then all messages of the connection.
    """
    rehearsal = Epoch(seed, Failure.NOTHING)
    rehearsal.run()
    choices = {}
    for name, messages in rehearsal.world.sent.items():
        end = next((number for number, message in enumerate(messages) if isinstance(message, ReadEnd)), None)
        last = len(messages) - 1 if end is None else end
        choices[name] = range(last + 1, len(messages)) if at_end else range(last + 1)
    chance = rehearsal.world.random("broken connection")
    name = chance.choice([name for name, numbers in choices.items() if numbers])
    return name, chance.choice(choices[name])
