"""The messages of `wire/proto` as frozen dataclasses. The `.proto` files describe each field."""

from __future__ import annotations

from dsnb.dataclass import dataclass
from dsnb.wire.cache_policy import CachePolicy
from dsnb.wire.link import LinkReport
from dsnb.wire.schedule import ConsumerReport, RoundsUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """A request or reply without content."""


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
    unsplittable_reason: str = ""
    num_files: int = 0
    no_file_sharding_reason: str = ""
    has_shard_hint: bool = False
    inexact_reason: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterReply:
    dataset_id: str = ""
    missing_blobs: tuple[str, ...] = ()
    difference: str = ""


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
    unsplittable_reason: str = ""
    num_files: int = 0
    no_file_sharding_reason: str = ""
    has_shard_hint: bool = False


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
    iteration: int = 0
    complete_only: bool = False
    position: IterationPosition | None = None
    num_consumers: int = 0
    consumer_index: int = 0
    skip_finished: bool = False
    previous_client_id: str = ""
    previous_iteration: int = 0
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRequest:
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationPosition:
    tasks: tuple[TaskPosition, ...] = ()
    providers: tuple[ProviderPosition, ...] = ()
    num_shards: int = 0
    inexact_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPosition:
    task_id: str = ""
    incarnation: int = 0
    entropy: int = 0
    skip: int = 0
    skipped_errors: bool = False
    ended: bool = False
    shard: int = 0
    splits: tuple[SplitRange, ...] = ()
    taken_over: bool = False
    first_index: int = 0
    pipeline_position: str = ""
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
    unacked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRange:
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
    unassigned: bool = False
    needed_from: int = 0
    sequence_incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    client_id: str = ""
    job_name: str = ""
    iteration: int = 0
    tasks: tuple[TaskInfo, ...] = ()
    finished: bool = False
    other_clients: int = 0
    missing_shards: tuple[str, ...] = ()
    loss_count: int = 0
    report_interval_ms: int = 0
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
    losses_received: int = 0
    instance: str = ""
    decode_ns: int = 0
    consumer: ConsumerReport | None = None
    holdings: tuple[TaskHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUpdate:
    tasks: tuple[TaskInfo, ...] = ()
    finished: bool = False
    losses: tuple[Loss, ...] = ()
    report_seq: int = 0
    has_state: bool = False
    cancelled_by: str = ""
    rounds: RoundsUpdate | None = None
    paused: bool = False
    skipping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    task_id: str = ""
    worker: str = ""
    splits: int = 0
    reason: str = ""
    elements: int = 0
    trainer_id: str = ""
    restarts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    task_id: str = ""
    incarnation: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    client_id: str = ""
    ended: tuple[EndedTask, ...] = ()
    final_report: ClientReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReply:
    finished: bool = False
    tasks: tuple[TaskInfo, ...] = ()
    cancelled_by: str = ""
    position: IterationPosition | None = None
    sole_client: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRequest:
    job_name: str = ""
    dataset_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    action: str = ""
    name: str = ""
    requested_by: str = ""
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
    eviction_in_s: float = 0.0
    in_flight_ns: int = 0
    consumed_beyond: tuple[IndexRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePosition:
    index: int = 0
    pipeline_position: str = ""
    splits: tuple[FinishedSplits, ...] = ()
    repeated_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSplits:
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
class LostReader:
    client_id: str = ""
    consumed: int = 0


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
    resume_position: ResumePosition | None = None
    exhausted: bool = False
    missing_elements: int = 0
    incarnation: int = 0
    repeated: int = 0
    lost_readers: tuple[LostReader, ...] = ()


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
    latency_samples: int = 0
    cpu_ns: int = 0
    cpus: int = 0
    idle_ns: int = 0
    last_release: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    task_id: str = ""
    dataset_id: str = ""
    job_name: str = ""
    iteration: int = 0
    incarnation: int = 0
    mode: str = ""
    cached: bool = False
    num_providers: int = 0
    num_shards: int = 0
    shard: int = 0
    entropy: int = 0
    endless: bool = False
    paused: bool = False
    position: TaskPosition | None = None
    num_consumers: int = 0
    definition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    name: str = ""
    start: tuple[TaskOrder, ...] = ()
    drop: tuple[str, ...] = ()
    report_seq: int = 0
    welcome: bool = False
    evict_trainers: tuple[TrainerEviction, ...] = ()
    instance: str = ""
    drain: bool = False
    releases: tuple[ClientRelease, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRelease:
    client_id: str = ""
    number: int = 0
    died: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEviction:
    task_id: str = ""
    trainer_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictTrainerRequest:
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
    cache_policy: CachePolicy | None = None
    instance: str = ""
    compression: str = ""
    codecs: tuple[str, ...] = ()
    checksum: bool = False
    why: str = ""
    dequeued: int = 0
    consumed_before: tuple[int, ...] = ()
    consumed_before_count: int = 0
    previous_client_id: str = ""
    incarnation: int = 0
