"""What the dispatcher's core is told, and what it wants done: events in, instructions out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.dispatcher.records import Record, TaskLost
from dsnb.wire.messages import EndedTask, IterationPosition, ResumePosition, TaskHolding, TrainerPosition
from dsnb.wire.schedule import ConsumerReport

# ---- events


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherStarts:
    """A dispatcher starts; the name is for a service that has none from an earlier start."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterDataset:
    """A pipeline is registered; an empty id asks for one, an empty fingerprint makes it equal to no other."""

    dataset_id: str
    fingerprint: str
    definition: str
    blobs: tuple[str, ...]
    element_spec: str
    cardinality: int
    compression: str
    pipeline: str
    providers: tuple[tuple[str, int], ...]
    unsplittable_reason: str
    num_files: int = -1
    no_file_sharding_reason: str = ""
    has_shard_hint: bool = False
    inexact_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A client begins to read; an empty job name asks for an anonymous job.

    `entropy` is for the pass, if it begins with this client; with a `position` it does, and begins there. A client that
    wants an `skip_finished` pass joins the next one that is not over.
    """

    dataset_id: str
    job_name: str
    mode: str
    cached: bool
    trainer_id: str
    compression: str
    target_workers: str
    iteration: int
    complete_only: bool = False
    entropy: int = 0
    position: IterationPosition | None = None
    num_consumers: int = 0
    consumer_index: int = 0
    skip_finished: bool = False
    previous_client_id: str = ""
    previous_iteration: int = 0
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksReadToEnd:
    """A client has read these tasks to their end and asks what is left. It had `elements`; -1 where that is unknown."""

    client_id: str
    ended: tuple[EndedTask, ...]
    elements: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingsReported:
    """A client tells what it has of tasks that are being reassigned."""

    client_id: str
    holdings: tuple[TaskHolding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHeartbeat:
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerReported:
    """A consumer of a coordinated read tells where it is."""

    client_id: str
    report: ConsumerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDisconnected:
    """A client's control stream broke; it may come back."""

    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLeaves:
    """A client is done, and tells what it consumed; or it `died`, as far as can be known."""

    client_id: str
    died: bool = False
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedGrant:
    """The last run of splits that a task got from a provider, as its worker knows it."""

    task_id: str
    provider: int
    repetition: int
    cursor: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArrives:
    """A worker opens its control stream, for the first time or again; `tasks` and `grants` are those it has."""

    uid: str
    name: str
    address: str
    isolation: str
    pid: int
    tasks: tuple[str, ...] = ()
    grants: tuple[ReportedGrant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a task is, as its worker reports it.

    Attributes:
        incarnation: Which start of the task this is of.
        splits_done: How many splits of each provider it is done with.
        resume_position: Where another worker can take it over.
        trainers: What was consumed of its sequence.
        exhausted: Whether everything was produced and sent.
        sent: How many elements were sent to each client.
        missing_elements: Elements that were there before the task was taken over, and that its pipeline did not make again.
        repeated: Elements that reached two clients, one of which came back after it was given up.
    """

    incarnation: int
    splits_done: tuple[int, ...] = ()
    resume_position: ResumePosition | None = None
    trainers: tuple[TrainerPosition, ...] = ()
    exhausted: bool = False
    sent: Mapping[str, int] = field(default_factory=dict)
    missing_elements: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported:
    """A worker reports: tasks whose pipelines ended, whom it serves, how far each task is.

    `partial` are tasks of cached jobs of which elements are gone; `last_release` is the number of the last release of a
    client that it obeyed.
    """

    uid: str
    ended: tuple[str, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    clients: frozenset[str] = frozenset()
    partial: tuple[str, ...] = ()
    last_release: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDisconnected:
    """A worker's control stream broke; it may come back."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrains:
    """A worker is to get nothing new."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeaves:
    """A worker says goodbye; or its owner saw it die and says how."""

    uid: str
    exit_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsRequested:
    """A task asks for splits; `cursor` is how many of this provider and repetition it has had."""

    task_id: str
    incarnation: int
    provider: int
    repetition: int
    cursor: int
    want: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetJob:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDataset:
    dataset_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseJob:
    """Nothing more of a job is to be handed out; `requested_by` tells people who wanted it, here and in the next four."""

    name: str
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    name: str
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    name: str
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker:
    """A worker, by its name, address or uid, is to finish what it has and leave."""

    name: str
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveWorker:
    """A worker, by its name, address or uid, is to leave at once."""

    name: str
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = (
    DispatcherStarts
    | RegisterDataset
    | Join
    | TasksReadToEnd
    | HoldingsReported
    | ClientHeartbeat
    | ClientDisconnected
    | ConsumerReported
    | ClientLeaves
    | WorkerArrives
    | WorkerReported
    | WorkerDisconnected
    | WorkerDrains
    | WorkerLeaves
    | SplitsRequested
    | ForgetJob
    | ForgetDataset
    | PauseJob
    | ResumeJob
    | CancelJob
    | DrainWorker
    | RemoveWorker
    | Tick
)

# ---- instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    worker: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTask:
    worker: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTask:
    """Tell a worker how a task that it has is now: whether it is paused."""

    worker: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDrainOrder:
    """Tell a worker to finish what it has and leave."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectWorker:
    """End a worker's control stream and tell it why: it is not wanted any more."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCancelled:
    """Tell a client that its job was cancelled, and by whom."""

    client_id: str
    cancelled_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseClient:
    """Tell a worker that a client is gone; it reports the number when it has seen to it."""

    worker: str
    client_id: str
    number: int
    died: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """Have a worker report at once."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyClients:
    """Tell all clients of an iteration which tasks it has now and whether it is finished."""

    job: str
    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyLoss:
    """Tell all clients of an iteration that elements will not come."""

    job: str
    iteration: int
    loss: TaskLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Something for the list of events that people read."""

    level: str
    text: str


Instruction = (
    StartTask
    | DropTask
    | UpdateTask
    | SendDrainOrder
    | DisconnectWorker
    | NotifyCancelled
    | ReleaseClient
    | RequestReport
    | NotifyClients
    | NotifyLoss
    | Announce
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What came of an event. The shell keeps the records first, then carries out the instructions, then answers.

    Attributes:
        error: What the caller is to be told in place of a reply: its own mistake, or one of dsnb's in the handling.
        bug: What went wrong beside the event, and is nothing to its caller: a mistake of dsnb's.
    """

    reply: Any = None
    error: Exception | None = None
    bug: Exception | None = None
    records: tuple[Record, ...] = ()
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The answer to `RegisterDataset`.

    Attributes:
        difference: In which operation the pipeline that has the id already differs from this one, which was not registered;
            empty where the id stands for this pipeline.
    """

    dataset_id: str
    difference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to `Join`."""

    client_id: str
    job: str
    iteration: int
    finished: bool
    other_clients: int
    missing_shards: tuple[str, ...] = ()
    """Shards that nobody produces, as people know them."""
    loss_count: int = 0
    """How many losses the pass has had already; the client hears of those that come."""
    paused_by: str = ""
    """Who paused the job, if it is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The answer to `SplitsRequested`: a run, or none because the repetition is over."""

    first: int = 0
    end: int = 0
    done: bool = False
