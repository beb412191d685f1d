"""What a service looks like at one moment: the one answer that `status()`, the dashboard, the demo and the tests read.

Counters only grow; rates are for the reader to compute from two snapshots. Times are seconds since the epoch by the
dispatcher's clock, durations nanoseconds or seconds as the name says. All classes are frozen, keyword-only and plain
data, and `VERSION` goes up when a field changes its meaning.
"""

from __future__ import annotations

from dsnb.arguments import checked, text
from dsnb.dataclass import dataclass
from dsnb.wire.job_names import qualified_job_name

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """One operation of a task's pipeline, summed over the workers of its job in `JobStatus.stages`.

    Attributes:
        threads: How many call its function at present, as asked for or as `AUTOTUNE` found; 0 where no
            `num_parallel_calls` was asked for, and the thread that pulls does it.
    """

    name: str
    depth: int
    elements: int
    busy_ns: int
    wait_ns: int = 0
    buffered: int = 0
    capacity: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStatus:
    """Where one trainer stands in one task's sequence.

    Attributes:
        offset: The first element of the task's sequence that the trainer has not consumed.
        lag: Newest produced element minus offset.
        in_flight_ns: Time that something which had been sent to it was not consumed yet: if it waited meanwhile, that was
            under way.
    """

    task_id: str
    worker: str
    offset: int
    lag: int
    in_flight_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStatus:
    """One trainer (or, without the cross-trainer cache, one client) of a job.

    Attributes:
        trainer_id: The id given in `CrossTrainerCache`, else the client's own id.
        clients: Iterators that read under this id now.
        elements: Elements consumed so far.
        hits: Elements that lay in the cache because another trainer had asked for them first.
        misses: Elements that were produced for this trainer.
        skipped: Elements that left the window before this trainer came to them.
        lost: Elements and splits' worth of data announced as lost to this trainer with a worker.
        wait_ns: Time its `next()` calls spent waiting for data.
        decode_ns: Time that they spent making elements of what had arrived.
        active_ns: Time since it began to read; what is neither waiting nor decoding is its own loop.
        cursors: Where it stands, task by task.
        spilled: Elements sent to it that came from a worker's disk.
        lag_bytes: Bytes of what was produced and it has not consumed, over all tasks.
        on_lag: What happens when it falls behind: "skip", "wait" or "spill"; empty without the cache.
        rate: Elements a second that it consumes at present.
        eviction_in_s: Seconds until it misses elements, at the present rates; 0 if it does not.
    """

    trainer_id: str
    clients: int
    elements: int
    hits: int = 0
    misses: int = 0
    skipped: int = 0
    lost: int = 0
    wait_ns: int = 0
    active_ns: int = 0
    cursors: tuple[CursorStatus, ...] = ()
    spilled: int = 0
    lag_bytes: int = 0
    on_lag: str = ""
    rate: float = 0.0
    eviction_in_s: float = 0.0
    decode_ns: int = 0

    @property
    def lag(self) -> int:
        """Elements that were produced and that this trainer has not consumed, over all tasks."""
        return sum(cursor.lag for cursor in self.cursors)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """One worker's part of one iteration.

    Attributes:
        state: "pending" (not read yet), "running", "paused", "ended" (everything produced), "failed".
        head: Number of elements produced so far; the index of the next.
        tail: The first element that is still in memory.
        window_bytes: Bytes of the elements in memory.
        capacity_bytes: The most that it may hold.
        evicted: Elements that were pushed out to make room.
        spill_bytes: Bytes on disk, for trainers that lag behind and asked for it.
        errors: Elements whose place is taken by an error.
        compression: What its readers get by gRPC is compressed with, and why; empty as long as nobody does.
    """

    task_id: str
    worker: str
    iteration: int
    incarnation: int
    state: str
    head: int = 0
    tail: int = 0
    window_bytes: int = 0
    capacity_bytes: int = 0
    evicted: int = 0
    errors: int = 0
    spill_bytes: int = 0
    compression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """How one client gets one task's elements.

    Attributes:
        transfer: "local" (by reference), "shared_memory" or "grpc".
        reason: What this way was chosen for.
        frame_slices: Frames and parts of frames that went this way.
        fallbacks: Those of them that were large enough for shared memory and had no room there, so they went over its
            socket instead: slower, and in memory of the client's own.
        held_bytes: Shared memory that the client holds now: what it has not consumed, and views that it keeps.
        fallback_reason: Why there was no room, the last time.
    """

    task_id: str
    worker: str
    client_id: str
    trainer_id: str
    transfer: str
    reason: str = ""
    frame_slices: int = 0
    fallbacks: int = 0
    held_bytes: int = 0
    fallback_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStatus:
    """One split provider of a DYNAMIC iteration, in its present repetition.

    Attributes:
        source: What is split, as in `range` or `list_files`.
        total: Splits of one repetition.
        done: Splits whose elements have been consumed.
        in_hand: Splits given to a task and not done yet.
        lost: Splits that died with their worker, over all repetitions.
    """

    source: str
    repetition: int
    total: int
    done: int
    in_hand: int
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantStatus:
    """A run of consecutive splits that was given to a task at once.

    Attributes:
        provider: Which split provider of the job, as its place in `JobStatus.splits`.
        first: The first split of the run; `end` is the one behind its last.
        state: "in hand", "done" (all its elements are consumed), "moved" (another worker takes it over), "lost" (its
            worker took it along) or "dropped" (its pass was given up).
        granted_at: When, in seconds since the epoch.
        ended_at: When it was done, moved, lost or dropped; 0 while it is in hand.
        reassigned: Whether some of it had been given before, and was moved or lost.
    """

    worker: str
    task_id: str
    iteration: int
    provider: int
    repetition: int
    first: int
    end: int
    state: str
    granted_at: float
    ended_at: float = 0.0
    reassigned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """One worker's share of an iteration in a static mode (FILE, DATA, FILE_OR_DATA, HINT).

    Attributes:
        state: "never begun" (its worker has not come), "running", "ended", or "lost" (its worker is gone, and
            another one is to take it over).
        worker: Who produces it now; empty where nobody does.
    """

    shard: int
    state: str
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    """One consumer of a coordinated read.

    Attributes:
        state: "reading", "joining" (it has come and does not know yet where it begins), or "absent".
        client_id: The client that it is, or was; empty if none has come.
        round: The next round that it will take, as it last said.
        last_change_age_s: Seconds since it took a round, came or went.
    """

    index: int
    client_id: str
    state: str
    round: int
    last_change_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsStatus:
    """How far a coordinated read is.

    Attributes:
        round: The first round that not all consumers have taken.
        workers: Whose tasks give rounds, in their order.
        consumers: All of them, by index.
        halted: Whether consumers stand still until all have agreed on who gives rounds from now on.
        dropped: Rounds that a worker had begun to hand out and took with it, for not all consumers had them.
        waits_for: What the next round waits for, in words; empty where nobody holds it up.
    """

    round: int
    workers: tuple[str, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    halted: bool = False
    dropped: int = 0
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job and its newest iteration.

    Attributes:
        name: The job's name, as in "train"; of one that is read by dataset id, as in "images/train"; of an anonymous
            job, a generated one.
        pipeline: The operations, as in `list_files | map(decode) | batch(32)`.
        mode: The name of a `ShardingPolicy`, as in "DYNAMIC".
        cached: Whether its readers share through the cross-trainer cache.
        iteration: The number of the newest iteration; 0 is the first pass.
        state: "running", "paused", "finished" (the newest iteration is), or "idle" (nobody reads).
        produced: Elements that all tasks produced, over all iterations.
        consumed: Elements that all readers consumed, over all iterations.
        splits: Of the newest iteration, in the mode DYNAMIC.
        shards: Of the newest iteration, in the static modes.
        paused_by: Who paused it, for people; empty while it goes on.
        grants: The newest runs of splits that were given to tasks, in the mode DYNAMIC; the oldest first.
        rounds: Of the newest iteration, in a coordinated read; else None.
        links: How its clients get their elements, task by task.
    """

    name: str
    anonymous: bool
    dataset_id: str
    pipeline: str
    mode: str
    cached: bool
    iteration: int
    state: str
    clients: int
    produced: int
    consumed: int
    lost_splits: int = 0
    tasks: tuple[TaskStatus, ...] = ()
    trainers: tuple[TrainerStatus, ...] = ()
    splits: tuple[SplitStatus, ...] = ()
    stages: tuple[StageStatus, ...] = ()
    shards: tuple[ShardStatus, ...] = ()
    paused_by: str = ""
    grants: tuple[GrantStatus, ...] = ()
    rounds: RoundsStatus | None = None
    links: tuple[LinkStatus, ...] = ()

    @property
    def elements_produced(self) -> int:
        """Elements that went through the pipeline once; the same as `produced`."""
        return self.produced

    @checked(trainer_id=text)
    def trainer(self, trainer_id: str) -> TrainerStatus | None:
        """The trainer of that id, if it has read."""
        return next((trainer for trainer in self.trainers if trainer.trainer_id == trainer_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker.

    Attributes:
        name: "w0", "w1" and so on, in the order of arrival.
        state: "running" or "draining"; lost workers are in the events.
        isolation: "thread" (in the process that started the service) or "process".
        busy_ns: Time that its pipelines spent working, summed over tasks.
        cache_bytes: Bytes of elements that it holds now, over all tasks.
        heartbeat_age_s: Seconds since it last reported.
        stderr: The last lines of its standard error, if it is a process that the service started; what user code
            prints there goes to it as well.
        clock_ns: By its own monotonic clock, when its counters had these values.
        late_ns: By how much a thread of it was late that had asked to be woken, all in all: where the interpreter or
            the processor is taken up by others. Measured in thread workers alone.
        latency_samples: How often that was measured.
        cpu_ns: Processor time of its process, which thread workers share with others.
        cpus: Processors that it may use; 0 where that is not known.
        idle_ns: Time that those processors had nothing to do, summed over them, whoever else uses them; 0 where that is
            not known.
    """

    name: str
    uid: str
    address: str
    state: str
    isolation: str
    pid: int
    tasks: int
    produced: int = 0
    sent_elements: int = 0
    sent_bytes: int = 0
    busy_ns: int = 0
    cache_bytes: int = 0
    capacity_bytes: int = 0
    rss_bytes: int = 0
    errors: int = 0
    readers: int = 0
    heartbeat_age_s: float = 0.0
    stderr: tuple[str, ...] = ()
    clock_ns: int = 0
    late_ns: int = 0
    latency_samples: int = 0
    cpu_ns: int = 0
    cpus: int = 0
    idle_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """Something that happened, in words; `level` is "info" or "warning"."""

    time: float
    level: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderJobs:
    """Totals of the finished jobs that are no longer shown one by one.

    Attributes:
        jobs: How many there are.
        produced: Elements that all of them produced.
        consumed: Elements that their readers consumed.
        lost_splits: Splits that died with their workers.
    """

    jobs: int = 0
    produced: int = 0
    consumed: int = 0
    lost_splits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole service at one moment.

    Attributes:
        seq: Goes up by one with each snapshot of one dispatcher.
        time: Seconds since the epoch, by the dispatcher's clock.
        target: Where the service listens, as in `grpc://127.0.0.1:5050`.
        jobs: Those that are read, and the newest hundred of those that nobody reads.
        older: Totals of the finished jobs before these. One that is read again is among `jobs` again.
        scalable: Whether the service starts its workers itself, so that it can be told to have more or fewer.
    """

    version: int
    seq: int
    time: float
    service: str
    target: str
    started: float
    workers: tuple[WorkerStatus, ...] = ()
    jobs: tuple[JobStatus, ...] = ()
    events: tuple[EventStatus, ...] = ()
    scalable: bool = False
    older: OlderJobs | None = None

    @property
    def job_count(self) -> int:
        """How many jobs the service knows, those included that are only in the totals."""
        return len(self.jobs) + (self.older.jobs if self.older is not None else 0)

    @checked(name=text)
    def job(self, name: str) -> JobStatus | None:
        """The job of that name, or the only one that has it within its dataset id; None if there is none."""
        found = [job for job in self.jobs if job.name == name]
        within = [job for job in self.jobs if job.name == qualified_job_name(job.dataset_id, name)]
        return found[0] if found else within[0] if len(within) == 1 else None
