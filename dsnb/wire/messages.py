"""The messages of `wire/proto`, as plain data. What each field means stands in the `.proto` files."""

from __future__ import annotations

from dsnb.dataclass import dataclass
from dsnb.wire.lineup import ConsumerReport, RoundsUpdate
from dsnb.wire.link import LinkReport
from dsnb.wire.manner import Manner


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """Nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProvider:
    source: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    dataset_id: str = ""
    fingerprint: str = ""
    definition: bytes = b""
    blobs: tuple[str, ...] = ()
    element_spec: str = ""
    cardinality: int = 0
    compression: str = ""
    pipeline: str = ""
    providers: tuple[SplitProvider, ...] = ()
    unsplittable: str = ""
    files: int = 0
    no_files: str = ""
    hinted: bool = False
    inexact: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterReply:
    dataset_id: str = ""
    missing: tuple[str, ...] = ()
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRequest:
    dataset_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReply:
    dataset_id: str = ""
    definition: bytes = b""
    blobs: tuple[str, ...] = ()
    element_spec: str = ""
    cardinality: int = 0
    compression: str = ""
    pipeline: str = ""
    unsplittable: str = ""
    files: int = 0
    no_files: str = ""
    hinted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobPiece:
    digest: str = ""
    nbytes: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRequest:
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    dataset_id: str = ""
    job_name: str = ""
    mode: str = ""
    cached: bool = False
    trainer_id: str = ""
    compression: str = ""
    target_workers: str = ""
    repetition: int = 0
    whole: bool = False
    position: PassPosition | None = None
    consumers: int = 0
    consumer: int = 0
    unfinished: bool = False
    rejoins: str = ""
    iteration: int = 0
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRequest:
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPosition:
    tasks: tuple[TaskPosition, ...] = ()
    providers: tuple[ProviderPosition, ...] = ()
    shards: int = 0
    inexact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPosition:
    task_id: str = ""
    incarnation: int = 0
    entropy: int = 0
    skip: int = 0
    failed: bool = False
    ended: bool = False
    shard: int = 0
    runs: tuple[SplitRun, ...] = ()
    taken_over: bool = False
    first: int = 0
    resume: str = ""
    trainers: tuple[TrainerPosition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    first: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPosition:
    trainer_id: str = ""
    offset: int = 0
    consumed: tuple[IndexRange, ...] = ()
    readers: tuple[ReaderPosition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    client_id: str = ""
    received: int = 0
    held: tuple[IndexRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHolding:
    task_id: str = ""
    incarnation: int = 0
    received: int = 0
    consumed: tuple[IndexRange, ...] = ()
    held: tuple[IndexRange, ...] = ()
    untold: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRun:
    provider: int = 0
    repetition: int = 0
    first: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPosition:
    repetition: int = 0
    next: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    task_id: str = ""
    worker: str = ""
    worker_uid: str = ""
    address: str = ""
    incarnation: int = 0
    ended: bool = False
    halted: bool = False
    needed_from: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    client_id: str = ""
    job_name: str = ""
    iteration: int = 0
    tasks: tuple[TaskInfo, ...] = ()
    finished: bool = False
    readers: int = 0
    absent: tuple[str, ...] = ()
    losses: int = 0
    report_ms: int = 0
    instance: str = ""
    paused_by: str = ""
    consumer_timeout_ms: int = 0
    client_timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    client_id: str = ""
    elements: int = 0
    wait_ns: int = 0
    active_ns: int = 0
    lost: int = 0
    seq: int = 0
    leaving: bool = False
    losses_heard: int = 0
    instance: str = ""
    decode_ns: int = 0
    consumer: ConsumerReport | None = None
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUpdate:
    tasks: tuple[TaskInfo, ...] = ()
    finished: bool = False
    losses: tuple[Loss, ...] = ()
    collect: int = 0
    state: bool = False
    cancelled_by: str = ""
    rounds: RoundsUpdate | None = None
    paused: bool = False
    losing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    task_id: str = ""
    worker: str = ""
    splits: int = 0
    reason: str = ""
    elements: int = 0
    trainer_id: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    task_id: str = ""
    incarnation: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    client_id: str = ""
    ended: tuple[EndedTask, ...] = ()
    farewell: ClientReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReply:
    finished: bool = False
    tasks: tuple[TaskInfo, ...] = ()
    cancelled_by: str = ""
    position: PassPosition | None = None
    sole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRequest:
    job_name: str = ""
    dataset_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    action: str = ""
    name: str = ""
    by: str = ""
    workers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReply:
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    name: str = ""
    depth: int = 0
    elements: int = 0
    busy_ns: int = 0
    wait_ns: int = 0
    buffered: int = 0
    capacity: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReport:
    trainer_id: str = ""
    clients: int = 0
    consumed: int = 0
    offset: int = 0
    hits: int = 0
    misses: int = 0
    skipped: int = 0
    spilled: int = 0
    lag_bytes: int = 0
    on_lag: str = ""
    rate: float = 0.0
    falls_off_s: float = 0.0
    flight_ns: int = 0
    consumed_beyond: tuple[IndexRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResume:
    index: int = 0
    point: str = ""
    splits: tuple[SplitsBehind, ...] = ()
    repeated_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsBehind:
    provider: int = 0
    repetition: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitGrant:
    provider: int = 0
    repetition: int = 0
    cursor: int = 0
    first: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    task_id: str = ""
    state: str = ""
    head: int = 0
    tail: int = 0
    window_bytes: int = 0
    capacity_bytes: int = 0
    evicted: int = 0
    errors: int = 0
    sent_elements: int = 0
    sent_bytes: int = 0
    trainers: tuple[TrainerReport, ...] = ()
    stages: tuple[StageReport, ...] = ()
    splits_done: tuple[int, ...] = ()
    readers: int = 0
    clients: tuple[str, ...] = ()
    grants: tuple[SplitGrant, ...] = ()
    spill_bytes: int = 0
    partial: bool = False
    compression: str = ""
    links: tuple[LinkReport, ...] = ()
    resume: TaskResume | None = None
    exhausted: bool = False
    short_by: int = 0
    incarnation: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    uid: str = ""
    name: str = ""
    address: str = ""
    isolation: str = ""
    pid: int = 0
    capacity_bytes: int = 0
    rss_bytes: int = 0
    tasks: tuple[TaskReport, ...] = ()
    ended: tuple[str, ...] = ()
    seq: int = 0
    leaving: bool = False
    draining: bool = False
    clock_ns: int = 0
    late_ns: int = 0
    looks: int = 0
    cpu_ns: int = 0
    cpus: int = 0
    idle_ns: int = 0
    released: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    task_id: str = ""
    dataset_id: str = ""
    job_name: str = ""
    iteration: int = 0
    incarnation: int = 0
    mode: str = ""
    cached: bool = False
    providers: int = 0
    shards: int = 0
    shard: int = 0
    entropy: int = 0
    endless: bool = False
    paused: bool = False
    position: TaskPosition | None = None
    consumers: int = 0
    definition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    name: str = ""
    start: tuple[TaskOrder, ...] = ()
    drop: tuple[str, ...] = ()
    collect: int = 0
    welcome: bool = False
    dismiss: tuple[Dismissal, ...] = ()
    instance: str = ""
    drain: bool = False
    releases: tuple[ClientRelease, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRelease:
    client_id: str = ""
    number: int = 0
    died: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissal:
    task_id: str = ""
    trainer_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissRequest:
    job_name: str = ""
    trainer_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    task_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsRequest:
    task_id: str = ""
    provider: int = 0
    repetition: int = 0
    cursor: int = 0
    want: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsReply:
    first: int = 0
    end: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    interval_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    task_id: str = ""
    client_id: str = ""
    trainer_id: str = ""
    received: int = 0
    granted: int = 0
    consumed: int = 0
    max_bytes: int = 0
    recall: bool = False
    leave: bool = False
    manner: Manner | None = None
    instance: str = ""
    compression: str = ""
    codecs: tuple[str, ...] = ()
    checksum: bool = False
    why: str = ""
    taken: int = 0
    had: tuple[int, ...] = ()
    had_count: int = 0
    client_before: str = ""
    incarnation: int = 0
