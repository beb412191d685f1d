"""What the dispatcher's handlers work on: state, time, who is alive, and what was decided so far."""

from __future__ import annotations

from collections import deque
from dataclasses import field

from dsnb.dataclass import dataclass
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.events import Instruction, Progress
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.state import State
from dsnb.wire.messages import TaskHolding


@dataclass(slots=True)
class ConsumerState:
    """Where a consumer of a coordinated read is, as it last said.

    `round` is the furthest that any client of this index was known to take next; the rest is of the one that is here.
    """

    client_id: str = ""
    ever_joined: bool = False
    """Whether anybody has ever come."""
    round: int = 0
    begun: bool = False
    halt: int = 0
    changed_at: float = 0.0
    """When it took a round, came or left."""
    received: dict[str, int] = field(default_factory=dict)
    """All turns of each task before this one."""
    oldest_rounds: dict[str, int] = field(default_factory=dict)
    """The first turn of each task that its worker still has."""

    def replace_client(self, client_id: str, now: float) -> None:
        """Learn that another client has this place, or none."""
        self.ever_joined = self.ever_joined or bool(self.client_id or client_id)
        self.client_id, self.begun, self.halt, self.changed_at = client_id, False, 0, now
        self.received, self.oldest_rounds = {}, {}


@dataclass(slots=True)
class TransientState:
    """What is not in the journal: times."""

    worker_deadlines: dict[str, float] = field(default_factory=dict)
    """Until when each worker must be heard of."""
    client_deadlines: dict[str, float] = field(default_factory=dict)
    """Until when each client must be heard of."""
    iterations_unread_since: dict[tuple[str, int], float] = field(default_factory=dict)
    """Since when an iteration has had no client."""
    clients_without_elements: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """The clients that came to the end of each pass and had not one element of it."""
    jobs_unused_since: dict[str, float] = field(default_factory=dict)
    """Since when a job has had no client."""
    datasets_unused_since: dict[str, float] = field(default_factory=dict)
    """Since when a dataset that was read has had no job."""
    former_workers: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=100))
    """Workers that are gone, each with its name, address and uid: asking them to leave once more is no error."""
    last_tick: float = 0.0
    consumer_states: dict[tuple[str, int], list[ConsumerState]] = field(default_factory=dict)
    """Where the consumers of coordinated passes are."""
    progress: dict[str, Progress] = field(default_factory=dict)
    """How far each task is, as its worker last said."""
    holdings: dict[str, dict[str, TaskHolding]] = field(default_factory=dict)
    """What clients told of tasks that are halted."""
    disconnected_clients: set[str] = field(default_factory=set)
    """Clients whose connection broke; they may come back, or be dead."""
    finished_clients: set[str] = field(default_factory=set)
    """Clients that were told that their pass is over for them, and so hold nothing of it."""
    iterations_without_departures: set[tuple[str, int]] = field(default_factory=set)
    """Passes that nobody left early: what a client says of their end needs no confirmation by the workers."""
    confirmed_releases: dict[str, int] = field(default_factory=dict)
    """The number of the last release that each worker confirmed."""
    sent_releases: dict[str, int] = field(default_factory=dict)
    """The number of the last release that was sent to each worker."""

    def forget_worker(self, uid: str) -> None:
        """Let go of what is kept of a worker that is gone."""
        for table in (self.worker_deadlines, self.confirmed_releases, self.sent_releases):
            table.pop(uid, None)

    def forget_client(self, client_id: str) -> None:
        """Let go of what is kept of a client that is gone."""
        self.client_deadlines.pop(client_id, None)
        self.disconnected_clients.discard(client_id)
        self.finished_clients.discard(client_id)

    def postpone(self, seconds: float) -> None:
        """Make all deadlines later."""
        for table in (
            self.worker_deadlines,
            self.client_deadlines,
            self.iterations_unread_since,
            self.jobs_unused_since,
            self.datasets_unused_since,
        ):
            for key in table:
                table[key] += seconds  # type: ignore[index]  # each table with its own kind of key


class Context:
    """The ground of one decision after another.

    Args:
        config: Times and limits.
        state: What a journal led to; None for a new service.
        now: The present time in seconds, of the clock that all later times are of.
    """

    def __init__(self, config: DispatcherConfig, state: State | None = None, now: float = 0.0) -> None:
        self.config = config
        self.state = state or State()
        self.now = now
        self.transient = _transient_state(config, self.state, now)
        self.records: list[Record] = []
        self.instructions: list[Instruction] = []

    def record(self, record: Record) -> None:
        """Make a change, and have it kept."""
        self.state.apply(record)
        self.records.append(record)

    def instruct(self, *instructions: Instruction) -> None:
        """Have something done when the records are kept."""
        self.instructions += instructions

    def next_number(self, kind: str) -> int:
        """The next number of a kind of thing."""
        return self.state.next_numbers[kind]


def _transient_state(config: DispatcherConfig, state: State, now: float) -> TransientState:
    """What a journal does not tell, as if everybody had just been heard of and everything just been left."""
    jobs = state.jobs.values()
    read = {job.dataset_id for job in jobs}
    return TransientState(
        worker_deadlines=dict.fromkeys(state.workers, now + config.worker_timeout_ms / 1000),
        client_deadlines=dict.fromkeys(state.clients, now + config.client_timeout_ms / 1000),
        disconnected_clients=set(state.clients),  # one may have died while there was no dispatcher
        iterations_unread_since={
            (job.name, i.number): now for job in jobs for i in job.iterations.values() if not i.clients
        },
        jobs_unused_since={job.name: now for job in jobs if not job.clients},
        datasets_unused_since={
            dataset.dataset_id: now
            for dataset in state.datasets.values()
            if not dataset.chosen and dataset.dataset_id not in read
        },
        last_tick=now,
    )
