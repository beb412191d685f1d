"""The journal's records. Every change of the dispatcher's state is one of these; nothing else changes it.

A record says what happened, not what was requested: replay never fails and makes no decisions.
"""

from __future__ import annotations

import msgspec

from dsnb.monitor.receipt import Receipt
from dsnb.wire.field_groups import ReaderCount
from dsnb.wire.messages import DatasetInfo, Loss, ResumePosition, SplitGrant, TaskHolding, TaskPosition, TrainerPosition
from dsnb.wire.schedule import Leftovers, RoundSchedule


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the journal holds: a field that this version does not know is an error, not something to leave out."""


class ServiceBegun(Stored, frozen=True, kw_only=True):
    """The first record. `instance` is unique to the service; numbers of clients and tasks are unique only within it."""

    instance: str


class DatasetRegistered(Stored, frozen=True, kw_only=True):
    """A pipeline was registered under an id.

    `definition` is the digest of the pickled pipeline, which is kept as a blob outside the journal. `chosen` is whether
    the user chose the id; such a dataset is kept until the user forgets it.
    """

    dataset_id: str
    chosen: bool
    definition: str
    info: DatasetInfo


class DatasetDropped(Stored, frozen=True, kw_only=True):
    dataset_id: str


class WorkerJoined(Stored, frozen=True, kw_only=True):
    """A worker joined.

    Attributes:
        static_index: The index of its entry in `worker_addresses`; -1 without such a list.
        held: Whether it gets no work until it replaces other workers.
    """

    uid: str
    name: str
    address: str
    isolation: str
    pid: int
    tags: tuple[str, ...] = ()
    static_index: int = -1
    data_port: int = 0
    held: bool = False


class StaticIndexAssigned(Stored, frozen=True, kw_only=True):
    """A known worker has this index in the current `worker_addresses`; it joined with another list, or with none."""

    uid: str
    static_index: int


class WorkerDraining(Stored, frozen=True, kw_only=True):
    uid: str


class WorkersReplaced(Stored, frozen=True, kw_only=True):
    """These workers get no new work from now on, and those that were held get it."""

    uids: tuple[str, ...]


class WorkerLeft(Stored, frozen=True, kw_only=True):
    uid: str


class JobCreated(Stored, frozen=True, kw_only=True):
    name: str
    anonymous: bool
    dataset_id: str
    mode: str
    cached: bool
    compression: str
    target_workers: str
    num_consumers: int = 0
    ranks: int = 0
    at_end: str = ""
    on_worker_loss: str = ""
    weight: float = 1.0


class JobForgotten(Stored, frozen=True, kw_only=True):
    """A job is gone with all its iterations; an anonymous one leaves the `receipt` of the newest."""

    name: str
    receipt: Receipt | None = None


class JobPaused(Stored, frozen=True, kw_only=True):
    """A job was paused; `paused_by` is the user who asked for it, for display."""

    name: str
    paused_by: str


class JobResumed(Stored, frozen=True, kw_only=True):
    name: str


class JobCancelled(Stored, frozen=True, kw_only=True):
    """A job is gone with all its iterations; its clients stay until they have been notified and have left.

    `receipt` is that of its newest iteration.
    """

    name: str
    cancelled_by: str
    receipt: Receipt | None = None


class IterationCreated(Stored, frozen=True, kw_only=True):
    """An iteration begins.

    Attributes:
        job: The name of its job.
        iteration: Its number.
        num_shards: How many shards it has; 0 if the mode has no shards.
        entropy: The root of what its tasks draw without a seed.
        resumed: Whether it begins at a reading position.
        providers: In a resumed DYNAMIC iteration, the repetition and the next split of each provider.
        num_consumers: How many consumers a coordinated read has; 0 otherwise.
        position_key: Identifies the position at which the consumers of a coordinated read began; empty for the
            beginning.
    """

    job: str
    iteration: int
    num_shards: int = 0
    entropy: int = 0
    resumed: bool = False
    providers: tuple[tuple[int, int], ...] = ()
    num_consumers: int = 0
    position_key: str = ""


class IterationClosed(Stored, frozen=True, kw_only=True):
    """Elements of a shared iteration were or may be evicted: trainers that want all of them can no longer join it."""

    job: str
    iteration: int


class TrainerEnded(Stored, frozen=True, kw_only=True):
    """A trainer received all of a shared iteration."""

    job: str
    iteration: int
    trainer_id: str


class IterationFinished(Stored, frozen=True, kw_only=True):
    job: str
    iteration: int


class IterationDropped(Stored, frozen=True, kw_only=True):
    """An iteration without clients was dropped, because it is not finished or begins again at a position."""

    job: str
    iteration: int


class IterationArchived(Stored, frozen=True, kw_only=True):
    """Only the number of a finished iteration without clients, and its receipt, are kept from now on."""

    job: str
    iteration: int
    receipt: Receipt | None = None


class TaskCreated(Stored, frozen=True, kw_only=True):
    task_id: str
    job: str
    iteration: int
    worker: str
    shard: int = -1
    start_position: TaskPosition | None = None


class TaskUnassigned(Stored, frozen=True, kw_only=True):
    """A task lost its worker. Once its clients have reported their holdings it is assigned again or dropped.

    Attributes:
        task_id: The task.
        worker: The name of its last worker; empty if the worker stays.
        reason: Why the worker is gone, as in "was lost".
        trainers: What each trainer consumed of the task's sequence, by the worker's last report.
        died: Whether the worker died, rather than being stopped, drained or removed.
    """

    task_id: str
    worker: str
    reason: str
    trainers: tuple[TrainerPosition, ...] = ()
    died: bool = False


class TaskAssigned(Stored, frozen=True, kw_only=True):
    """An unassigned task has a worker again, which begins at `start_position`; None for the beginning.

    If that begins a new sequence, `delivered` is how many elements of the one before reached clients.
    """

    task_id: str
    worker: str
    start_position: TaskPosition | None = None
    delivered: int = 0


class TaskEnded(Stored, frozen=True, kw_only=True):
    task_id: str


class TaskDropped(Stored, frozen=True, kw_only=True):
    """A task is no more; if it `begins_again`, another one is created at its position.

    `consumed` is what is known to be consumed of it, or to be held by clients; `expected` how many elements it would
    have made, -1 if unknown.
    """

    task_id: str
    begins_again: bool = False
    consumed: tuple[TrainerPosition, ...] = ()
    expected: int = -1


class ClientJoined(Stored, frozen=True, kw_only=True):
    """A client joined an iteration; in a coordinated read it has this `consumer_index`.

    `holdings` are what it consumed and holds from before, if it was counted as lost and joined again. `complete_only`
    says that its trainer must not lose elements of an iteration that it shares. `previous_client_id` is who it was
    before it was counted as lost.
    """

    client_id: str
    job: str
    iteration: int
    trainer_id: str
    consumer_index: int = -1
    holdings: tuple[TaskHolding, ...] = ()
    complete_only: bool = False
    previous_client_id: str = ""


class ClientLeft(Stored, frozen=True, kw_only=True):
    """A client left, or `died` without a leave message.

    Attributes:
        client_id: The client.
        died: Whether it died.
        holdings: What it reported as consumed; of tasks that are gone, also what it held and did not consume.
        count: How much it consumed, by its own count; None if it did not say so.
    """

    client_id: str
    died: bool = False
    holdings: tuple[TaskHolding, ...] = ()
    count: ReaderCount | None = None


class ClientFinished(Stored, frozen=True, kw_only=True):
    """A client learned that its iteration is over: it receives nothing more.

    Attributes:
        client_id: The client.
        holdings: What it consumed, if it had consumed all that it received; else None.
        count: How much that is by its own count; None if it had not consumed all.
    """

    client_id: str
    holdings: tuple[TaskHolding, ...] | None = None
    count: ReaderCount | None = None


class RepetitionBegun(Stored, frozen=True, kw_only=True):
    """A provider assigns its splits from the first one again."""

    job: str
    iteration: int
    provider: int
    repetition: int


class SplitsGiven(Stored, frozen=True, kw_only=True):
    task_id: str
    grant: SplitGrant


class SplitsReported(Stored, frozen=True, kw_only=True):
    """A reconnected worker reported a grant that the journal lacks.

    After a power failure the journal may lack its last records; of two grants the one with the larger cursor counts.
    """

    task_id: str
    grant: SplitGrant


class TaskProgressed(Stored, frozen=True, kw_only=True):
    """A task progressed.

    Attributes:
        task_id: The task.
        splits_done: For each provider, how many splits were consumed completely, over all repetitions.
        resume_position: Where another worker can take the task over.
        trainers: The trainers that need no element before the resume position, and which of those they consumed: all,
            unless some were evicted while they were away.
    """

    task_id: str
    splits_done: tuple[int, ...]
    resume_position: ResumePosition | None = None
    trainers: tuple[TrainerPosition, ...] = ()


class SplitsRefused(Stored, frozen=True, kw_only=True):
    """A task of a draining worker was refused more splits; it ends early, and other tasks get them."""

    task_id: str


class SplitsLost(Stored, frozen=True, kw_only=True):
    job: str
    iteration: int
    provider: int
    count: int


class TaskLost(Stored, frozen=True, kw_only=True):
    """Elements of a task will not arrive. Each client of the iteration is notified of each loss once, in order."""

    loss: Loss


class RoundsHalted(Stored, frozen=True, kw_only=True):
    """The consumers of an iteration are halted, because a new schedule is due."""

    job: str
    iteration: int


class RoundsResumed(Stored, frozen=True, kw_only=True):
    """A halt ended without a new schedule, because a consumer left and could not answer."""

    job: str
    iteration: int


class RoundsAgreed(Stored, frozen=True, kw_only=True):
    """All consumers have said where they are; the rounds after that are planned anew.

    Attributes:
        job: The name of the job.
        iteration: The number of the iteration.
        settled: Schedules of what all consumers have received from tasks that are gone, which comes first.
        agreed_round: The first round after those.
        tasks: The tasks that give rounds from there on.
        task_rounds: For each of these tasks, which of its own rounds comes next.
        joined: The rounds of left-over elements that come last, if all tasks have come to their end.
        leftovers: For each task, who gets its left-over elements, from the time when all tasks have come to their end.
        needed_from: All consumers have taken the rounds before this one.
        dropped: How many rounds are dropped, because not all consumers have received them.
    """

    job: str
    iteration: int
    settled: tuple[RoundSchedule, ...] = ()
    agreed_round: int
    tasks: tuple[str, ...]
    task_rounds: tuple[int, ...]
    joined: tuple[RoundSchedule, ...] = ()
    leftovers: dict[str, Leftovers] | None = None
    needed_from: int
    dropped: int = 0


class TaskRoundsEnded(Stored, frozen=True, kw_only=True):
    """The data of a task have ended after this many elements."""

    job: str
    iteration: int
    task_id: str
    elements: int


class ConsumerEnded(Stored, frozen=True, kw_only=True):
    """A consumer has taken all rounds."""

    job: str
    iteration: int
    index: int


Record = (
    ServiceBegun
    | DatasetRegistered
    | DatasetDropped
    | WorkerJoined
    | StaticIndexAssigned
    | WorkerDraining
    | WorkersReplaced
    | WorkerLeft
    | JobCreated
    | JobForgotten
    | JobPaused
    | JobResumed
    | JobCancelled
    | IterationCreated
    | IterationClosed
    | TrainerEnded
    | IterationFinished
    | IterationDropped
    | IterationArchived
    | TaskCreated
    | TaskUnassigned
    | TaskAssigned
    | TaskEnded
    | TaskDropped
    | ClientJoined
    | ClientLeft
    | ClientFinished
    | RepetitionBegun
    | SplitsGiven
    | SplitsReported
    | TaskProgressed
    | SplitsRefused
    | SplitsLost
    | TaskLost
    | RoundsHalted
    | RoundsResumed
    | RoundsAgreed
    | TaskRoundsEnded
    | ConsumerEnded
)
