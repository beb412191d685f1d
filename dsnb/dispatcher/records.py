"""The journal's records: every change of the dispatcher's state is one of these, and nothing else changes it.

Records say what happened, not what was wanted: replaying them never fails and never decides.
"""

from __future__ import annotations

from dsnb.dataclass import dataclass
from dsnb.wire.messages import TaskHolding, TaskResume, TrainerPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where a task begins that goes on where another one was: of a pass that is resumed, or of a worker that is gone.

    Attributes:
        entropy: The root of what it draws without a seed.
        skip: Elements of its sequence to leave out; `failed` if some of them were errors.
        ended: Whether it has nothing more.
        runs: The splits that it was given, in order: provider, repetition, first and end.
        taken_over: Whether readers go on in the same sequence; the rest is of such a task alone.
        first: The number of its first element.
        resume: Where its pipeline begins; empty for behind `skip`.
        trainers: What its readers had of the sequence.
    """

    entropy: int
    skip: int = 0
    failed: bool = False
    ended: bool = False
    runs: tuple[tuple[int, int, int, int], ...] = ()
    taken_over: bool = False
    first: int = 0
    resume: str = ""
    trainers: tuple[TrainerPosition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBegun:
    """The first record: no other service has this name, whatever numbers it gives to its clients and tasks."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRegistered:
    """A pipeline has an id.

    `definition` is the digest of the pickled pipeline, which is kept beside the journal; `chosen` tells whether the
    user gave the id, and so will come back for it; `files`, `no_files` and `hinted` are what the static modes ask for.
    """

    dataset_id: str
    chosen: bool
    fingerprint: str
    definition: str
    blobs: tuple[str, ...]
    element_spec: str
    cardinality: int
    compression: str
    pipeline: str
    providers: tuple[tuple[str, int], ...]
    unsplittable: str
    files: int = -1
    no_files: str = ""
    hinted: bool = False
    inexact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDropped:
    dataset_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """`place` is the worker's in the fixed list; -1 where there is none."""

    uid: str
    name: str
    address: str
    isolation: str
    pid: int
    place: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlaced:
    """The place of a known worker in the present list of workers; it joined under another list, or under none."""

    uid: str
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining:
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCreated:
    name: str
    anonymous: bool
    dataset_id: str
    mode: str
    cached: bool
    compression: str
    target_workers: str
    consumers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForgotten:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPaused:
    """Nothing more is handed out; `by` tells people who wanted it."""

    name: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    """A job is gone with all its passes; its clients stay until they have heard of it and left."""

    name: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCreated:
    """A pass begins, cut into `shards`, or 0 where the mode has none; all of them draw from one `entropy`.

    One that is resumed has `providers`, the repetition and the next split of each, if its mode is DYNAMIC.
    A coordinated one is for so many `consumers`; 0 in others.
    """

    job: str
    number: int
    shards: int = 0
    entropy: int = 0
    resumed: bool = False
    providers: tuple[tuple[int, int], ...] = ()
    consumers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationClosed:
    """Elements of a shared pass are gone: who wants all of it comes too late."""

    job: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEnded:
    """A trainer has had all of a shared pass."""

    job: str
    number: int
    trainer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFinished:
    job: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationDropped:
    """Nobody reads it and it was not finished: who asks for it again gets a new one."""

    job: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassArchived:
    """A finished pass that nobody reads: all that is kept of it is that it is over."""

    job: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCreated:
    task_id: str
    job: str
    number: int
    worker: str
    shard: int = -1
    begin: Begin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHalted:
    """A task has no worker any more: what its readers have of it is collected, then it is assigned or given up.

    Attributes:
        worker: The name of the worker that had it.
        reason: What became of that worker, as in "was lost".
        trainers: What was consumed of its sequence, as far as the worker had reported.
        died: Whether the worker came to a sudden end, and not by anybody's will.
    """

    task_id: str
    worker: str
    reason: str
    trainers: tuple[TrainerPosition, ...] = ()
    died: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAssigned:
    """A halted task has another worker, which begins at the beginning, or where `begin` says."""

    task_id: str
    worker: str
    begin: Begin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDropped:
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientJoined:
    """A client reads a pass, in a coordinated one as the `consumer` of that index.

    `holdings` tell what it consumed before, as another client that was given up.
    """

    client_id: str
    job: str
    number: int
    trainer_id: str
    consumer: int = -1
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLeft:
    """A client is gone; `died` if it did not say so itself. `holdings` tell what it had consumed, as far as it said."""

    client_id: str
    died: bool = False
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionBegun:
    """A provider's splits are handed out from the first one again."""

    job: str
    number: int
    provider: int
    repetition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsGiven:
    task_id: str
    provider: int
    repetition: int
    cursor: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsTold:
    """A worker that came back tells of a run that its task was given, and nothing else is known of it.

    Where a host lost its power the journal may lack its last moments; the larger cursor counts.
    """

    task_id: str
    provider: int
    repetition: int
    cursor: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgressed:
    """How many splits of each provider a task is done with, over all repetitions, and where it can be taken over.

    `trainers` are those that need nothing before that place.
    """

    task_id: str
    done: tuple[int, ...]
    resume: TaskResume | None = None
    trainers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsRefused:
    """A task of a draining worker asked for splits that others will get: it will end early."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsLost:
    job: str
    number: int
    provider: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLost:
    """Elements of a task will not arrive. Each reader of the pass receives these records once, in order.

    Attributes:
        worker: The name of the worker that had it.
        splits: Splits of which not all elements arrived.
        elements: How many did not arrive; -1 where that cannot be known.
        trainer_id: The trainer that they did not reach; empty for all readers together.
        again: Whether the task begins again, so that readers get its elements from the first one on.
    """

    task_id: str
    worker: str
    splits: int
    reason: str
    elements: int = -1
    trainer_id: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsHalted:
    """The consumers of a pass are to stop where they are, for the tasks that give rounds change."""

    job: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsGoOn:
    """A halt is over without a change: one of the consumers has gone, and could not agree."""

    job: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineupMade:
    """From the round `first` on these tasks give rounds, beginning with these turns of theirs.

    No consumer needs what came before the round `needed_from`; `dropped` rounds will never be given.
    """

    job: str
    number: int
    first: int
    tasks: tuple[str, ...]
    turns: tuple[int, ...]
    needed_from: int
    dropped: int = 0


Record = (
    ServiceBegun
    | DatasetRegistered
    | DatasetDropped
    | WorkerJoined
    | WorkerPlaced
    | WorkerDraining
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
    | PassArchived
    | TaskCreated
    | TaskHalted
    | TaskAssigned
    | TaskEnded
    | TaskDropped
    | ClientJoined
    | ClientLeft
    | RepetitionBegun
    | SplitsGiven
    | SplitsTold
    | TaskProgressed
    | SplitsRefused
    | SplitsLost
    | TaskLost
    | RoundsHalted
    | RoundsGoOn
    | LineupMade
)
