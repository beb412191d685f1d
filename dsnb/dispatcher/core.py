"""The dispatcher's core: an event and a time go in, records and instructions come out. It decides and does nothing.

Theory of operation. What is durable is in `State` and changes by records alone. Beside it stands what only matters
while this process lives (`Liveness`): until when each worker and client must be heard of, since when an iteration or a
job has had no reader, how far splits are done. A tick that comes late (a cell held the interpreter for a minute) makes
all deadlines later by as much, so nobody is declared dead for the dispatcher's own absence.

The handlers live in one file for each concern: `datasets`, `jobs`, `membership`, `leases`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsnb.dispatcher import datasets, jobs, leases, membership
from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.state import State
from dsnb.errors import DsnbError


@dataclass(slots=True)
class Liveness:
    """What is not in the journal: times, and how far splits are done."""

    workers: dict[str, float] = field(default_factory=dict)
    """Until when each worker must be heard of."""
    clients: dict[str, float] = field(default_factory=dict)
    """Until when each client must be heard of."""
    unread: dict[tuple[str, int], float] = field(default_factory=dict)
    """Since when an iteration has had no client."""
    unused: dict[str, float] = field(default_factory=dict)
    """Since when a job has had no client."""
    done: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Splits that each task is done with, for each provider."""
    unread_datasets: dict[str, float] = field(default_factory=dict)
    """Since when a dataset that was read has had no job."""
    ticked: float = 0.0

    def postpone(self, seconds: float) -> None:
        """Make all deadlines later."""
        for table in (self.workers, self.clients, self.unread, self.unused, self.unread_datasets):
            for key in table:
                table[key] += seconds  # type: ignore[index]  # each table with its own kind of key


class Core:
    """Decides for one service.

    Args:
        config: Times and limits.
        state: What a journal led to; None for a new service.
        now: The present time in seconds, of the clock that all later times are of.
    """

    def __init__(self, config: DispatcherConfig, state: State | None = None, now: float = 0.0) -> None:
        self.config = config
        self.state = state or State()
        self.now = now
        self.live = Liveness(ticked=now)
        self._records: list[Record] = []
        self._instructions: list[e.Instruction] = []
        for worker in self.state.workers:
            self.live.workers[worker] = now + config.worker_timeout_ms / 1000
        for client in self.state.clients:
            self.live.clients[client] = now + config.client_timeout_ms / 1000

    def handle(self, event: e.Event, now: float) -> e.Decision:
        """Decide what an event leads to; errors of the caller are in the decision, not raised."""
        self.now = now
        self._records, self._instructions = [], []
        reply, error = None, None
        try:
            reply = _HANDLERS[type(event)](self, event)
        except DsnbError as mistake:
            error = mistake
        return e.Decision(
            reply=reply, error=error, records=tuple(self._records), instructions=tuple(self._instructions)
        )

    def record(self, record: Record) -> None:
        """Make a change, and have it kept."""
        self.state.apply(record)
        self._records.append(record)

    def instruct(self, *instructions: e.Instruction) -> None:
        """Have something done when the records are kept."""
        self._instructions += instructions

    def number(self, kind: str) -> int:
        """The next number of a kind of thing."""
        return self.state.made[kind]

    def validate(self) -> None:
        """Check what must hold between any two events."""
        self.state.validate()
        assert set(self.live.workers) == set(self.state.workers), "a worker has no deadline, or a deadline no worker"
        assert set(self.live.clients) == set(self.state.clients), "a client has no deadline, or a deadline no client"


_HANDLERS: dict[type, Callable[[Core, Any], Any]] = {
    e.RegisterDataset: datasets.register,
    e.Join: jobs.join,
    e.EndSeen: jobs.end_seen,
    e.ForgetJob: jobs.forget,
    e.ClientSeen: membership.client_seen,
    e.ClientBroken: membership.client_broken,
    e.ClientLeaves: membership.client_leaves,
    e.WorkerArrives: membership.worker_arrives,
    e.WorkerSeen: membership.worker_seen,
    e.WorkerBroken: membership.worker_broken,
    e.WorkerDrains: membership.worker_drains,
    e.WorkerLeaves: membership.worker_leaves,
    e.SplitsRequested: leases.give,
    e.Tick: membership.tick,
}
