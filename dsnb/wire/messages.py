"""The messages of `wire/proto` as frozen structs. The `.proto` files describe each field.

Those that a status has too are described here.
"""

from __future__ import annotations

import msgspec

from dsnb.wire.field_groups import CacheCounters, JobParameters, ReaderCount, TaskProgress, WorkerUse, WorkParameters
from dsnb.wire.schedule import ConsumerReport, Leftovers, RoundsUpdate


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """A request or reply without content."""


class SplitProvider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str = ""
    count: int = 0
    ordered: bool = False


class DatasetInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fingerprint: str = ""
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
    libraries: tuple[str, ...] = ()
    inexact_shard_reason: str = ""
    unordered_reason: str = ""
    in_split_order: bool = False


class RegisterRequest(msgspec.Struct, frozen=True, kw_only=True):
    dataset_id: str = ""
    definition: bytes = b""
    nbytes: int = 0
    info: DatasetInfo | None = None


class RegisterReply(msgspec.Struct, frozen=True, kw_only=True):
    dataset_id: str = ""
    missing_blobs: tuple[str, ...] = ()
    difference: str = ""


class DatasetRequest(msgspec.Struct, frozen=True, kw_only=True):
    dataset_id: str = ""


class DatasetReply(msgspec.Struct, frozen=True, kw_only=True):
    dataset_id: str = ""
    definition: bytes = b""
    info: DatasetInfo | None = None


class BlobPiece(msgspec.Struct, frozen=True, kw_only=True):
    digest: str = ""
    nbytes: int = 0
    data: bytes = b""


class BlobRequest(msgspec.Struct, frozen=True, kw_only=True):
    digest: str = ""


class JoinRequest(JobParameters, frozen=True, kw_only=True):
    dataset_id: str = ""
    job_name: str = ""
    trainer_id: str = ""
    iteration: int = 0
    complete_only: bool = False
    position: IterationPosition | None = None
    consumer_index: int = 0
    skip_finished: bool = False
    previous_client_id: str = ""
    previous_iteration: int = 0
    holdings: tuple[TaskHolding, ...] = ()


class PositionRequest(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str = ""


class IterationPosition(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[TaskPosition, ...] = ()
    providers: tuple[ProviderPosition, ...] = ()
    num_shards: int = 0
    inexact_reason: str = ""
    entropy: int = 0
    rounds: int = 0
    gone_tasks: tuple[TaskPosition, ...] = ()
    unit: UnitPosition | None = None


class UnitPosition(msgspec.Struct, frozen=True, kw_only=True):
    unit: int = 0
    unit_end: int = 0
    skip: int = 0
    skipped_errors: bool = False


class TaskPosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a task is, or where one begins that continues it: in a resumed iteration, or after its worker is gone.

    Attributes:
        task_id: The task; empty if any task may begin here.
        incarnation: The incarnation of the sequence.
        entropy: The root of what the task draws without a seed.
        skip: How many elements to skip at the start of its sequence.
        skipped_errors: Whether some of the skipped elements were errors.
        ended: Whether the task has no more elements.
        shard: The task's shard, in the static modes.
        splits: The splits that it was given, in order.
        taken_over: Whether clients continue in the same sequence; the fields below are for such a task only.
        first_index: The number of its first element.
        pipeline_position: Where its pipeline begins; empty for directly after the skipped elements.
        trainers: What each trainer consumed of the sequence.
    """

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


class IndexRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    first: int = 0
    end: int = 0


class TrainerPosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    trainer_id: str = ""
    offset: int = 0
    consumed: tuple[IndexRange, ...] = ()
    readers: tuple[ReaderPosition, ...] = ()


class ReaderPosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_id: str = ""
    received: int = 0
    held: tuple[IndexRange, ...] = ()


class TaskHolding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    task_id: str = ""
    incarnation: int = 0
    received: int = 0
    consumed: tuple[IndexRange, ...] = ()
    held: tuple[IndexRange, ...] = ()
    unacked: int = 0


class SplitRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    provider: int = 0
    repetition: int = 0
    first: int = 0
    end: int = 0


class ProviderPosition(msgspec.Struct, frozen=True, kw_only=True):
    repetition: int = 0
    next: int = 0


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""
    worker: str = ""
    worker_uid: str = ""
    address: str = ""
    incarnation: int = 0
    ended: bool = False
    unassigned: bool = False
    needed_from: int = 0
    sequence_incarnation: int = 0
    worker_tags: tuple[str, ...] = ()
    begun: bool = False
    data_port: int = 0


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
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
    deployment_mode: str = ""
    returned: bool = False
    next_round: int = 0


class ClientOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client runs: the cell, the process and the host.

    Attributes:
        cell: The number of the notebook cell that reads, as in `In [3]`; 0 if no cell reads.
        pid: The id of its process.
        host: The name of its host. In a status it is empty if all workers and clients are on one host.
        ordinal: How many clients the same cell has begun, with this one; without a cell, its process. A loop over
            epochs begins one for each epoch.
    """

    cell: int = 0
    pid: int = 0
    host: str = ""
    ordinal: int = 0


class ClientReport(ReaderCount, frozen=True, kw_only=True):
    client_id: str = ""
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
    convert_ns: int = 0
    origin: ClientOrigin | None = None
    unreachable_workers: tuple[str, ...] = ()
    lost_parts: int = 0


class ClientUpdate(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[TaskInfo, ...] = ()
    finished: bool = False
    losses: tuple[Loss, ...] = ()
    report_seq: int = 0
    has_state: bool = False
    cancelled_by: str = ""
    rounds: RoundsUpdate | None = None
    paused: bool = False
    skipping: bool = False
    evicted_by: str = ""
    running_workers: tuple[str, ...] = ()


class Loss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Elements of a task will not arrive.

    Attributes:
        task_id: The task.
        worker: The name of its last worker.
        splits: How many splits did not arrive completely.
        reason: Why the worker is gone, as in "was lost".
        elements: How many elements did not arrive; -1 if that is unknown.
        trainer_id: The trainer that they did not reach; empty for all clients together.
        restarts: Whether the task begins again, so that clients get its elements from the first one on.
    """

    task_id: str = ""
    worker: str = ""
    splits: int = 0
    reason: str = ""
    elements: int = 0
    trainer_id: str = ""
    restarts: bool = False


class EndedTask(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""
    incarnation: int = 0
    received: int = 0


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str = ""
    ended: tuple[EndedTask, ...] = ()
    final_report: ClientReport | None = None


class EndReply(msgspec.Struct, frozen=True, kw_only=True):
    finished: bool = False
    tasks: tuple[TaskInfo, ...] = ()
    cancelled_by: str = ""
    position: IterationPosition | None = None
    sole_client: bool = False


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    job_name: str = ""
    dataset_id: str = ""


class ReceiptRequest(msgspec.Struct, frozen=True, kw_only=True):
    job_name: str = ""
    epoch: int = 0


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    action: str = ""
    name: str = ""
    requested_by: str = ""
    workers: int = 0
    minimum: int = 0
    maximum: int = 0


class ControlReply(msgspec.Struct, frozen=True, kw_only=True):
    state: str = ""


class TrainerReport(CacheCounters, frozen=True, kw_only=True):
    trainer_id: str = ""
    clients: int = 0
    consumed: int = 0
    offset: int = 0
    lag_bytes: int = 0
    on_lag: str = ""
    rate: float = 0.0
    eviction_in_s: float = 0.0
    in_flight_ns: int = 0
    consumed_ranges: tuple[IndexRange, ...] = ()


class ResumePosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    index: int = 0
    pipeline_position: str = ""
    splits: tuple[FinishedSplits, ...] = ()
    repeated_ms: int = 0


class FinishedSplits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    provider: int = 0
    repetition: int = 0
    count: int = 0


class SplitGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range of splits that a task got from a provider.

    `cursor` is how many splits of this repetition the task had before.
    """

    provider: int = 0
    repetition: int = 0
    cursor: int = 0
    first: int = 0
    end: int = 0


class LostReader(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str = ""
    consumed: int = 0


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a pipeline; summed over the workers of a job in `JobStatus.stages`.

    The counters only grow, so that readers compute rates from two reports.

    Attributes:
        name: The operation and the name of its function, as in `map(decode)`.
        depth: Distance from the last operation of the pipeline.
        elements: Elements that left this stage.
        busy_ns: Time spent in this stage itself, without its inputs' time; summed over its threads.
        wait_ns: Time this stage waited for its inputs on another thread, or, in a source, for splits from the
            dispatcher.
        buffered: Elements that are ready in this stage now (prefetch, shuffle, parallel map).
        capacity: The maximum of `buffered`; 0 for a stage that buffers nothing.
        threads: The number of threads that call its function at present, as requested or as chosen by `AUTOTUNE`; 0
            without `num_parallel_calls`, when the thread that reads from the operation calls it.
    """

    name: str = ""
    depth: int = 0
    elements: int = 0
    busy_ns: int = 0
    wait_ns: int = 0
    buffered: int = 0
    capacity: int = 0
    threads: int = 0


class LinkReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one client gets one task's elements.

    Attributes:
        task_id: The task; empty in a worker's report, where it is the task that the report is of.
        worker: The task's worker, likewise.
        client_id: The client.
        trainer_id: The trainer for which it reads.
        transfer: "local" (by reference), "shared_memory" or "grpc".
        reason: Why this transfer was chosen.
        frame_slices: Frame slices that were transferred.
        fallbacks: Frame slices that were large enough for shared memory but found no room there, so that they were sent
            over its socket instead: slower, and in the client's own memory.
        held_bytes: Shared memory that the client holds now: elements not consumed yet, and views that it keeps.
        fallback_reason: Why there was no room at the last fallback.
        sent: Elements that were sent to the client in all.
        at_end: Whether that is everything that the client can get, as far as the worker knows.
    """

    task_id: str = ""
    worker: str = ""
    client_id: str = ""
    trainer_id: str = ""
    transfer: str = ""
    reason: str = ""
    frame_slices: int = 0
    fallbacks: int = 0
    held_bytes: int = 0
    fallback_reason: str = ""
    sent: int = 0
    at_end: bool = False


class TaskReport(TaskProgress, frozen=True, kw_only=True):
    task_id: str = ""
    state: str = ""
    sent_elements: int = 0
    sent_bytes: int = 0
    trainers: tuple[TrainerReport, ...] = ()
    stages: tuple[StageReport, ...] = ()
    splits_done: tuple[int, ...] = ()
    readers: int = 0
    clients: tuple[str, ...] = ()
    grants: tuple[SplitGrant, ...] = ()
    closing: bool = False
    links: tuple[LinkReport, ...] = ()
    resume_position: ResumePosition | None = None
    exhausted: bool = False
    missing_elements: int = 0
    incarnation: int = 0
    repeated: int = 0
    lost_readers: tuple[LostReader, ...] = ()


class GpuStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a host.

    Attributes:
        name: Its model, as the driver names it.
        busy_percent: Share of the last moment in which it computed; -1 if the driver does not tell.
        memory_used_bytes: Bytes of its memory that are in use, by all processes.
        memory_total_bytes: Bytes of its memory.
    """

    name: str = ""
    busy_percent: int = 0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of a host together use of it.

    Attributes:
        memory_used_bytes: Bytes of memory in use, without what the system keeps of files.
        memory_total_bytes: Bytes of memory of the host, or of the container if its limit is lower; 0 if unknown.
        gpus: Its GPUs in the driver's order; empty if it has none, or if `nvidia-ml-py` is not installed there.
    """

    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    gpus: tuple[GpuStatus, ...] = ()


class WorkerReport(WorkerUse, frozen=True, kw_only=True):
    tasks: tuple[TaskReport, ...] = ()
    ended: tuple[str, ...] = ()
    seq: int = 0
    leaving: bool = False
    draining: bool = False
    last_release: int = 0
    python: str = ""
    notices: tuple[str, ...] = ()
    host_use: HostUse | None = None
    data_port: int = 0


class TaskOrder(WorkParameters, frozen=True, kw_only=True):
    task_id: str = ""
    dataset_id: str = ""
    job_name: str = ""
    iteration: int = 0
    incarnation: int = 0
    num_providers: int = 0
    num_shards: int = 0
    shard: int = 0
    entropy: int = 0
    endless: bool = False
    paused: bool = False
    position: TaskPosition | None = None
    definition: str = ""
    leftovers: Leftovers | None = None


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    start: tuple[TaskOrder, ...] = ()
    drop: tuple[DroppedTask, ...] = ()
    report_seq: int = 0
    welcome: bool = False
    evict_trainers: tuple[TrainerEviction, ...] = ()
    instance: str = ""
    drain: bool = False
    releases: tuple[ClientRelease, ...] = ()
    closed: tuple[ClosedIteration, ...] = ()
    cpus_of_host_workers: int = 0


class DroppedTask(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""
    incarnation: int = 0


class ClosedIteration(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""
    incarnation: int = 0
    clients: tuple[JoinedClient, ...] = ()


class JoinedClient(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str = ""
    trainer_id: str = ""


class ClientRelease(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str = ""
    number: int = 0
    died: bool = False
    holdings: tuple[TaskHolding, ...] = ()


class TrainerEviction(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""
    trainer_id: str = ""


class EvictTrainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    job_name: str = ""
    trainer_id: str = ""
    requested_by: str = ""


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""


class PeekRequest(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""


class LeafPreview(msgspec.Struct, frozen=True, kw_only=True):
    path: str = ""
    shape: str = ""
    dtype: str = ""
    values: str = ""
    thumbnail: bytes = b""


class ElementPreview(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    leaves: tuple[LeafPreview, ...] = ()
    more_leaves: int = 0
    error: str = ""


class PeekReply(msgspec.Struct, frozen=True, kw_only=True):
    elements: tuple[ElementPreview, ...] = ()


class SplitsRequest(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str = ""
    provider: int = 0
    repetition: int = 0
    cursor: int = 0
    want: int = 0
    incarnation: int = 0


class SplitsReply(msgspec.Struct, frozen=True, kw_only=True):
    first: int = 0
    end: int = 0
    done: bool = False
    refused: bool = False


class WatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    interval_ms: int = 0


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one trainer in the cross-trainer cache; see `client.trainer_cache`.

    Attributes:
        on_lag: What happens when the trainer falls behind the window: "wait", "spill"; for any other value it skips the
            evicted elements.
        start: The trainer's first element: "newest" is the next one to be produced; any other value is the oldest one
            that is available.
        timeout_s: Seconds without reading after which other trainers no longer wait for this one; 0 for no limit.
        start_together: How many trainers must have joined before any of them gets an element.
    """

    on_lag: str = ""
    start: str = ""
    timeout_s: float = 0.0
    start_together: int = 0


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
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
    opening: int = 0
    host_id: str = ""
    want_files: bool = False
