"""What the dispatcher's handlers work on: state, time, liveness, and the records and instructions decided so far."""

from __future__ import annotations

from collections import deque

import msgspec

from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.events import Instruction
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.state import State, Task
from dsnb.wire.field_groups import ReaderCount
from dsnb.wire.messages import TaskHolding, TaskReport, TrainerPosition

_MOST_LOST_READERS = 1000


class ConsumerState(msgspec.Struct):
    """Where a consumer of a coordinated read is, from its last report.

    `round` is the highest next round that any client with this index reported; the other fields describe the current
    client.
    """

    client_id: str = ""
    ever_joined: bool = False
    """Whether any client ever had this index."""
    round: int = 0
    begun: bool = False
    halt: int = 0
    changed_at: float = 0.0
    """When the client last took a round, joined or left."""
    received: dict[str, int] = msgspec.field(default_factory=dict)
    """For each task, the consumer has received all of the task's rounds below this number."""
    oldest_rounds: dict[str, int] = msgspec.field(default_factory=dict)
    """For each task, the oldest of its rounds that its worker still has."""

    def replace_client(self, client_id: str, now: float) -> None:
        """Set the client that has this index; empty if there is none."""
        self.ever_joined = self.ever_joined or bool(self.client_id or client_id)
        self.client_id, self.begun, self.halt, self.changed_at = client_id, False, 0, now
        self.received, self.oldest_rounds = {}, {}


class TransientState(msgspec.Struct):
    """State that is not in the journal: deadlines, and the last reports of workers and clients."""

    worker_deadlines: dict[str, float] = msgspec.field(default_factory=dict)
    """When each worker counts as lost unless it reports again."""
    client_deadlines: dict[str, float] = msgspec.field(default_factory=dict)
    """When each client counts as lost unless it reports again."""
    iterations_unread_since: dict[tuple[str, int], float] = msgspec.field(default_factory=dict)
    """Since when an iteration has had no client."""
    clients_without_elements: dict[tuple[str, int], set[str]] = msgspec.field(default_factory=dict)
    """For each iteration, the clients that reached its end without receiving any element."""
    jobs_unused_since: dict[str, float] = msgspec.field(default_factory=dict)
    """Since when a job has had no client."""
    datasets_unused_since: dict[str, float] = msgspec.field(default_factory=dict)
    """Since when a dataset that was read has had no job."""
    former_workers: deque[tuple[str, ...]] = msgspec.field(default_factory=lambda: deque(maxlen=100))
    """Name, address and uid of workers that are gone: draining or removing one of them again is not an error."""
    holds_new_workers: bool = False
    """Whether workers that join get no work yet, because they are to replace others."""
    last_tick: float = 0.0
    """When the clock last ticked."""
    standstills_s: float = 0.0
    """For how long this process has stood still so far; see `Context.set_time`."""
    consumer_states: dict[tuple[str, int], list[ConsumerState]] = msgspec.field(default_factory=dict)
    """Where the consumers of each coordinated iteration are."""
    progress: dict[str, TaskReport] = msgspec.field(default_factory=dict)
    """How far each task is, from its worker's last report."""
    holdings: dict[str, dict[str, TaskHolding]] = msgspec.field(default_factory=dict)
    """For each unassigned task, the holdings that clients have reported, by client id."""
    lost_readers: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """By client and task: how many elements of a task that is gone its worker knew a lost client to have consumed. The
    newest `_MOST_LOST_READERS` entries."""
    unreachable_workers: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    """By client: the workers that it cannot reach, and since when it has said so."""
    client_counts: dict[str, ReaderCount] = msgspec.field(default_factory=dict)
    """How much each client had consumed, by its last report."""
    disconnected_clients: set[str] = msgspec.field(default_factory=set)
    """Clients whose connection broke; they may reconnect, or be dead."""
    iterations_without_departures: set[tuple[str, int]] = msgspec.field(default_factory=set)
    """Iterations that no client left early: the workers need not confirm that a client has reached the end."""
    confirmed_releases: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of the last release that each worker confirmed."""
    sent_releases: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of the last release that was sent to each worker."""

    def has_confirmed_releases(self, worker: str) -> bool:
        """Whether a worker has taken back what all clients that are gone did not consume."""
        return self.confirmed_releases.get(worker, 0) >= self.sent_releases.get(worker, 0)

    def forget_progress(self, task_id: str) -> None:
        """Drop how far a task is, except for what its lost clients had consumed: they may return."""
        progress = self.progress.pop(task_id, None)
        for reader in progress.lost_readers if progress is not None else ():
            self.lost_readers[reader.client_id, task_id] = reader.consumed
        for oldest in list(self.lost_readers)[:-_MOST_LOST_READERS]:
            del self.lost_readers[oldest]

    def known_consumption(self, client_id: str, task_id: str) -> int | None:
        """How many elements of a task its worker knew a lost client to have consumed; None if it did not report it."""
        progress = self.progress.get(task_id)
        for reader in progress.lost_readers if progress is not None else ():
            if reader.client_id == client_id:
                return reader.consumed
        return self.lost_readers.get((client_id, task_id))

    def consumed_positions(self, task: Task) -> tuple[TrainerPosition, ...]:
        """What each trainer consumed of a task, by the last report of its worker."""
        progress = self.progress.get(task.task_id)
        if progress is None or progress.incarnation != task.incarnation:
            return ()
        return tuple(
            TrainerPosition(trainer_id=trainer.trainer_id, consumed=trainer.consumed_ranges)
            for trainer in progress.trainers
        )

    def forget_worker(self, uid: str) -> None:
        """Drop what is kept about a worker that is gone."""
        for table in (self.worker_deadlines, self.confirmed_releases, self.sent_releases):
            table.pop(uid, None)

    def forget_client(self, client_id: str) -> None:
        """Drop what is kept about a client that is gone."""
        self.client_deadlines.pop(client_id, None)
        self.disconnected_clients.discard(client_id)
        self.client_counts.pop(client_id, None)
        self.unreachable_workers.pop(client_id, None)


class Context:
    """State and time for the handlers, and the records and instructions of the current decision.

    Args:
        config: Times and limits.
        state: The state restored from the journal; None for a new service.
        now: The current time in seconds; all later times must come from the same clock.
    """

    def __init__(self, config: DispatcherConfig, state: State | None = None, now: float = 0.0) -> None:
        self.config = config
        self.state = state or State()
        self.now = now
        """The current time in seconds, without the standstills of this process. All kept times are of this kind."""
        self.entropy = 0
        """The entropy of an iteration that the current event creates."""
        self.transient = _transient_state(config, self.state, now)
        self.records: list[Record] = []
        self.instructions: list[Instruction] = []

    def set_time(self, clock: float) -> None:
        """Set the current time to that of the shell's clock, less the time for which this process has stood still.

        A standstill shows in the ticks: what exceeds two intervals since the last tick was one. Called before each
        event and each snapshot, since these may come before the late tick.
        """
        transient = self.transient
        self.now = clock - transient.standstills_s
        late = self.now - transient.last_tick - 2 * self.config.job_gc_check_interval_ms / 1000
        if late > 0:
            transient.standstills_s += late
            self.now -= late

    def record(self, record: Record) -> None:
        """Apply a record to the state, and have the shell write it to the journal."""
        self.state.apply(record)
        self.records.append(record)

    def instruct(self, *instructions: Instruction) -> None:
        """Have the shell carry out instructions after it has committed the records."""
        self.instructions += instructions

    def next_number(self, kind: str) -> int:
        """The number for the next object of a kind; the record that creates the object takes it."""
        return self.state.next_numbers[kind]


def _transient_state(config: DispatcherConfig, state: State, now: float) -> TransientState:
    """Transient state after a restart: as if all workers and clients had just reported, and idle times began now."""
    jobs = state.jobs.values()
    read = {job.dataset_id for job in jobs}
    return TransientState(
        worker_deadlines=dict.fromkeys(state.workers, now + config.worker_timeout_ms / 1000),
        client_deadlines=dict.fromkeys(state.clients, now + config.client_timeout_ms / 1000),
        disconnected_clients=set(state.clients),  # any client may have died while the dispatcher was down
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
