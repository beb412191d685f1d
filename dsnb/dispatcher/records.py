"""The journal's records: every change of the dispatcher's state is one of these, and nothing else changes it.

Records say what happened, not what was wanted: replaying them never fails and never decides.
"""

from __future__ import annotations

from dsnb.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where a task of a resumed pass begins: what its predecessor had.

    Attributes:
        entropy: The root of what it draws without a seed.
        skip: Elements of its sequence to leave out; `failed` if some of them were errors.
        ended: Whether it has nothing more.
        runs: The splits that it was given, in order: provider, repetition, first and end.
    """

    entropy: int
    skip: int = 0
    failed: bool = False
    ended: bool = False
    runs: tuple[tuple[int, int, int, int], ...] = ()


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
class TaskRestarted:
    """The task's worker came back as another process, `worker`, and begins again."""

    task_id: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDropped:
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientJoined:
    """A client reads a pass, in a coordinated one as the `consumer` of that index."""

    client_id: str
    job: str
    number: int
    trainer_id: str
    consumer: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLeft:
    client_id: str


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
class SplitsDone:
    """How many splits of each provider a task is done with, over all repetitions."""

    task_id: str
    done: tuple[int, ...]


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
    """A worker took data with it that readers of a pass were to get; each of them is told once, in this order."""

    task_id: str
    worker: str
    splits: int
    reason: str


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
    | TaskRestarted
    | TaskEnded
    | TaskDropped
    | ClientJoined
    | ClientLeft
    | RepetitionBegun
    | SplitsGiven
    | SplitsTold
    | SplitsDone
    | SplitsRefused
    | SplitsLost
    | TaskLost
    | RoundsHalted
    | RoundsGoOn
    | LineupMade
)
