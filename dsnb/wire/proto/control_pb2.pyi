from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SplitProvider(_message.Message):
    __slots__ = ("source", "count", "ordered")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    source: str
    count: int
    ordered: bool
    def __init__(self, source: _Optional[str] = ..., count: _Optional[int] = ..., ordered: bool = ...) -> None: ...

class DatasetInfo(_message.Message):
    __slots__ = ("fingerprint", "blobs", "element_spec", "cardinality", "compression", "pipeline", "providers", "unsplittable_reason", "num_files", "no_file_sharding_reason", "has_shard_hint", "inexact_reason", "libraries", "inexact_shard_reason", "unordered_reason", "in_split_order")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_SPEC_FIELD_NUMBER: _ClassVar[int]
    CARDINALITY_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    UNSPLITTABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_FILES_FIELD_NUMBER: _ClassVar[int]
    NO_FILE_SHARDING_REASON_FIELD_NUMBER: _ClassVar[int]
    HAS_SHARD_HINT_FIELD_NUMBER: _ClassVar[int]
    INEXACT_REASON_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    INEXACT_SHARD_REASON_FIELD_NUMBER: _ClassVar[int]
    UNORDERED_REASON_FIELD_NUMBER: _ClassVar[int]
    IN_SPLIT_ORDER_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    blobs: _containers.RepeatedScalarFieldContainer[str]
    element_spec: str
    cardinality: int
    compression: str
    pipeline: str
    providers: _containers.RepeatedCompositeFieldContainer[SplitProvider]
    unsplittable_reason: str
    num_files: int
    no_file_sharding_reason: str
    has_shard_hint: bool
    inexact_reason: str
    libraries: _containers.RepeatedScalarFieldContainer[str]
    inexact_shard_reason: str
    unordered_reason: str
    in_split_order: bool
    def __init__(self, fingerprint: _Optional[str] = ..., blobs: _Optional[_Iterable[str]] = ..., element_spec: _Optional[str] = ..., cardinality: _Optional[int] = ..., compression: _Optional[str] = ..., pipeline: _Optional[str] = ..., providers: _Optional[_Iterable[_Union[SplitProvider, _Mapping]]] = ..., unsplittable_reason: _Optional[str] = ..., num_files: _Optional[int] = ..., no_file_sharding_reason: _Optional[str] = ..., has_shard_hint: bool = ..., inexact_reason: _Optional[str] = ..., libraries: _Optional[_Iterable[str]] = ..., inexact_shard_reason: _Optional[str] = ..., unordered_reason: _Optional[str] = ..., in_split_order: bool = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("dataset_id", "definition", "nbytes", "info")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    definition: bytes
    nbytes: int
    info: DatasetInfo
    def __init__(self, dataset_id: _Optional[str] = ..., definition: _Optional[bytes] = ..., nbytes: _Optional[int] = ..., info: _Optional[_Union[DatasetInfo, _Mapping]] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("dataset_id", "missing_blobs", "difference")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    MISSING_BLOBS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    missing_blobs: _containers.RepeatedScalarFieldContainer[str]
    difference: str
    def __init__(self, dataset_id: _Optional[str] = ..., missing_blobs: _Optional[_Iterable[str]] = ..., difference: _Optional[str] = ...) -> None: ...

class DatasetRequest(_message.Message):
    __slots__ = ("dataset_id",)
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    def __init__(self, dataset_id: _Optional[str] = ...) -> None: ...

class DatasetReply(_message.Message):
    __slots__ = ("dataset_id", "definition", "info")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    definition: bytes
    info: DatasetInfo
    def __init__(self, dataset_id: _Optional[str] = ..., definition: _Optional[bytes] = ..., info: _Optional[_Union[DatasetInfo, _Mapping]] = ...) -> None: ...

class BlobPiece(_message.Message):
    __slots__ = ("digest", "nbytes", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: str
    nbytes: int
    data: bytes
    def __init__(self, digest: _Optional[str] = ..., nbytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class BlobRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("dataset_id", "job_name", "mode", "cached", "trainer_id", "compression", "target_workers", "iteration", "complete_only", "position", "num_consumers", "consumer_index", "ranks", "at_end", "on_worker_loss", "weight", "skip_finished", "previous_client_id", "previous_iteration", "holdings")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_ONLY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    ON_WORKER_LOSS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SKIP_FINISHED_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_ITERATION_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    job_name: str
    mode: str
    cached: bool
    trainer_id: str
    compression: str
    target_workers: str
    iteration: int
    complete_only: bool
    position: IterationPosition
    num_consumers: int
    consumer_index: int
    ranks: int
    at_end: str
    on_worker_loss: str
    weight: float
    skip_finished: bool
    previous_client_id: str
    previous_iteration: int
    holdings: _containers.RepeatedCompositeFieldContainer[TaskHolding]
    def __init__(self, dataset_id: _Optional[str] = ..., job_name: _Optional[str] = ..., mode: _Optional[str] = ..., cached: bool = ..., trainer_id: _Optional[str] = ..., compression: _Optional[str] = ..., target_workers: _Optional[str] = ..., iteration: _Optional[int] = ..., complete_only: bool = ..., position: _Optional[_Union[IterationPosition, _Mapping]] = ..., num_consumers: _Optional[int] = ..., consumer_index: _Optional[int] = ..., ranks: _Optional[int] = ..., at_end: _Optional[str] = ..., on_worker_loss: _Optional[str] = ..., weight: _Optional[float] = ..., skip_finished: bool = ..., previous_client_id: _Optional[str] = ..., previous_iteration: _Optional[int] = ..., holdings: _Optional[_Iterable[_Union[TaskHolding, _Mapping]]] = ...) -> None: ...

class PositionRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class IterationPosition(_message.Message):
    __slots__ = ("tasks", "providers", "num_shards", "inexact_reason", "entropy", "rounds", "gone_tasks", "unit")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    INEXACT_REASON_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    GONE_TASKS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskPosition]
    providers: _containers.RepeatedCompositeFieldContainer[ProviderPosition]
    num_shards: int
    inexact_reason: str
    entropy: int
    rounds: int
    gone_tasks: _containers.RepeatedCompositeFieldContainer[TaskPosition]
    unit: UnitPosition
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskPosition, _Mapping]]] = ..., providers: _Optional[_Iterable[_Union[ProviderPosition, _Mapping]]] = ..., num_shards: _Optional[int] = ..., inexact_reason: _Optional[str] = ..., entropy: _Optional[int] = ..., rounds: _Optional[int] = ..., gone_tasks: _Optional[_Iterable[_Union[TaskPosition, _Mapping]]] = ..., unit: _Optional[_Union[UnitPosition, _Mapping]] = ...) -> None: ...

class UnitPosition(_message.Message):
    __slots__ = ("unit", "unit_end", "skip", "skipped_errors")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    UNIT_END_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_ERRORS_FIELD_NUMBER: _ClassVar[int]
    unit: int
    unit_end: int
    skip: int
    skipped_errors: bool
    def __init__(self, unit: _Optional[int] = ..., unit_end: _Optional[int] = ..., skip: _Optional[int] = ..., skipped_errors: bool = ...) -> None: ...

class TaskPosition(_message.Message):
    __slots__ = ("task_id", "incarnation", "entropy", "skip", "skipped_errors", "ended", "shard", "splits", "taken_over", "first_index", "pipeline_position", "trainers")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_ERRORS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_OVER_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_POSITION_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    incarnation: int
    entropy: int
    skip: int
    skipped_errors: bool
    ended: bool
    shard: int
    splits: _containers.RepeatedCompositeFieldContainer[SplitRange]
    taken_over: bool
    first_index: int
    pipeline_position: str
    trainers: _containers.RepeatedCompositeFieldContainer[TrainerPosition]
    def __init__(self, task_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., entropy: _Optional[int] = ..., skip: _Optional[int] = ..., skipped_errors: bool = ..., ended: bool = ..., shard: _Optional[int] = ..., splits: _Optional[_Iterable[_Union[SplitRange, _Mapping]]] = ..., taken_over: bool = ..., first_index: _Optional[int] = ..., pipeline_position: _Optional[str] = ..., trainers: _Optional[_Iterable[_Union[TrainerPosition, _Mapping]]] = ...) -> None: ...

class IndexRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class TrainerPosition(_message.Message):
    __slots__ = ("trainer_id", "offset", "consumed", "readers")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    trainer_id: str
    offset: int
    consumed: _containers.RepeatedCompositeFieldContainer[IndexRange]
    readers: _containers.RepeatedCompositeFieldContainer[ReaderPosition]
    def __init__(self, trainer_id: _Optional[str] = ..., offset: _Optional[int] = ..., consumed: _Optional[_Iterable[_Union[IndexRange, _Mapping]]] = ..., readers: _Optional[_Iterable[_Union[ReaderPosition, _Mapping]]] = ...) -> None: ...

class ReaderPosition(_message.Message):
    __slots__ = ("client_id", "received", "held")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    received: int
    held: _containers.RepeatedCompositeFieldContainer[IndexRange]
    def __init__(self, client_id: _Optional[str] = ..., received: _Optional[int] = ..., held: _Optional[_Iterable[_Union[IndexRange, _Mapping]]] = ...) -> None: ...

class TaskHolding(_message.Message):
    __slots__ = ("task_id", "incarnation", "received", "consumed", "held", "unacked")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    UNACKED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    incarnation: int
    received: int
    consumed: _containers.RepeatedCompositeFieldContainer[IndexRange]
    held: _containers.RepeatedCompositeFieldContainer[IndexRange]
    unacked: int
    def __init__(self, task_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., received: _Optional[int] = ..., consumed: _Optional[_Iterable[_Union[IndexRange, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[IndexRange, _Mapping]]] = ..., unacked: _Optional[int] = ...) -> None: ...

class SplitRange(_message.Message):
    __slots__ = ("provider", "repetition", "first", "end")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    provider: int
    repetition: int
    first: int
    end: int
    def __init__(self, provider: _Optional[int] = ..., repetition: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ProviderPosition(_message.Message):
    __slots__ = ("repetition", "next")
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    repetition: int
    next: int
    def __init__(self, repetition: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class TaskInfo(_message.Message):
    __slots__ = ("task_id", "worker", "worker_uid", "address", "incarnation", "ended", "unassigned", "needed_from", "sequence_incarnation", "worker_tags", "begun", "data_port")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKER_UID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    UNASSIGNED_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FROM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_TAGS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker: str
    worker_uid: str
    address: str
    incarnation: int
    ended: bool
    unassigned: bool
    needed_from: int
    sequence_incarnation: int
    worker_tags: _containers.RepeatedScalarFieldContainer[str]
    begun: bool
    data_port: int
    def __init__(self, task_id: _Optional[str] = ..., worker: _Optional[str] = ..., worker_uid: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., ended: bool = ..., unassigned: bool = ..., needed_from: _Optional[int] = ..., sequence_incarnation: _Optional[int] = ..., worker_tags: _Optional[_Iterable[str]] = ..., begun: bool = ..., data_port: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("client_id", "job_name", "iteration", "tasks", "finished", "other_clients", "missing_shards", "loss_count", "report_interval_ms", "instance", "paused_by", "consumer_timeout_ms", "client_timeout_ms", "deployment_mode", "returned", "next_round")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    OTHER_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_MODE_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    job_name: str
    iteration: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    finished: bool
    other_clients: int
    missing_shards: _containers.RepeatedScalarFieldContainer[str]
    loss_count: int
    report_interval_ms: int
    instance: str
    paused_by: str
    consumer_timeout_ms: int
    client_timeout_ms: int
    deployment_mode: str
    returned: bool
    next_round: int
    def __init__(self, client_id: _Optional[str] = ..., job_name: _Optional[str] = ..., iteration: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ..., finished: bool = ..., other_clients: _Optional[int] = ..., missing_shards: _Optional[_Iterable[str]] = ..., loss_count: _Optional[int] = ..., report_interval_ms: _Optional[int] = ..., instance: _Optional[str] = ..., paused_by: _Optional[str] = ..., consumer_timeout_ms: _Optional[int] = ..., client_timeout_ms: _Optional[int] = ..., deployment_mode: _Optional[str] = ..., returned: bool = ..., next_round: _Optional[int] = ...) -> None: ...

class ClientReport(_message.Message):
    __slots__ = ("client_id", "elements", "wait_ns", "active_ns", "lost", "seq", "leaving", "losses_received", "instance", "decode_ns", "consumer", "holdings", "convert_ns", "origin", "unreachable_workers", "lost_parts", "digest")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_NS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    LOSSES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    CONVERT_NS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    LOST_PARTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    elements: int
    wait_ns: int
    active_ns: int
    lost: int
    seq: int
    leaving: bool
    losses_received: int
    instance: str
    decode_ns: int
    consumer: ConsumerReport
    holdings: _containers.RepeatedCompositeFieldContainer[TaskHolding]
    convert_ns: int
    origin: ClientOrigin
    unreachable_workers: _containers.RepeatedScalarFieldContainer[str]
    lost_parts: int
    digest: bytes
    def __init__(self, client_id: _Optional[str] = ..., elements: _Optional[int] = ..., wait_ns: _Optional[int] = ..., active_ns: _Optional[int] = ..., lost: _Optional[int] = ..., seq: _Optional[int] = ..., leaving: bool = ..., losses_received: _Optional[int] = ..., instance: _Optional[str] = ..., decode_ns: _Optional[int] = ..., consumer: _Optional[_Union[ConsumerReport, _Mapping]] = ..., holdings: _Optional[_Iterable[_Union[TaskHolding, _Mapping]]] = ..., convert_ns: _Optional[int] = ..., origin: _Optional[_Union[ClientOrigin, _Mapping]] = ..., unreachable_workers: _Optional[_Iterable[str]] = ..., lost_parts: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class ClientOrigin(_message.Message):
    __slots__ = ("cell", "pid", "host", "ordinal")
    CELL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    cell: int
    pid: int
    host: str
    ordinal: int
    def __init__(self, cell: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., ordinal: _Optional[int] = ...) -> None: ...

class ConsumerReport(_message.Message):
    __slots__ = ("round", "begun", "halt", "held")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    round: int
    begun: bool
    halt: int
    held: _containers.RepeatedCompositeFieldContainer[HeldRounds]
    def __init__(self, round: _Optional[int] = ..., begun: bool = ..., halt: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldRounds, _Mapping]]] = ...) -> None: ...

class HeldRounds(_message.Message):
    __slots__ = ("task_id", "received", "oldest_round")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_ROUND_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    received: int
    oldest_round: int
    def __init__(self, task_id: _Optional[str] = ..., received: _Optional[int] = ..., oldest_round: _Optional[int] = ...) -> None: ...

class RoundSchedule(_message.Message):
    __slots__ = ("first_round", "halt", "tasks", "task_rounds", "joined", "fillers", "held", "elements")
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TASK_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    FILLERS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    first_round: int
    halt: int
    tasks: _containers.RepeatedScalarFieldContainer[str]
    task_rounds: _containers.RepeatedScalarFieldContainer[int]
    joined: bool
    fillers: int
    held: bool
    elements: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_round: _Optional[int] = ..., halt: _Optional[int] = ..., tasks: _Optional[_Iterable[str]] = ..., task_rounds: _Optional[_Iterable[int]] = ..., joined: bool = ..., fillers: _Optional[int] = ..., held: bool = ..., elements: _Optional[_Iterable[int]] = ...) -> None: ...

class RoundsUpdate(_message.Message):
    __slots__ = ("halt", "schedules", "dropped", "agreed_round")
    HALT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    AGREED_ROUND_FIELD_NUMBER: _ClassVar[int]
    halt: int
    schedules: _containers.RepeatedCompositeFieldContainer[RoundSchedule]
    dropped: int
    agreed_round: int
    def __init__(self, halt: _Optional[int] = ..., schedules: _Optional[_Iterable[_Union[RoundSchedule, _Mapping]]] = ..., dropped: _Optional[int] = ..., agreed_round: _Optional[int] = ...) -> None: ...

class ClientUpdate(_message.Message):
    __slots__ = ("tasks", "finished", "losses", "report_seq", "has_state", "cancelled_by", "rounds", "paused", "skipping", "evicted_by", "running_workers")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    REPORT_SEQ_FIELD_NUMBER: _ClassVar[int]
    HAS_STATE_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_BY_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SKIPPING_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_WORKERS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    finished: bool
    losses: _containers.RepeatedCompositeFieldContainer[Loss]
    report_seq: int
    has_state: bool
    cancelled_by: str
    rounds: RoundsUpdate
    paused: bool
    skipping: bool
    evicted_by: str
    running_workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ..., finished: bool = ..., losses: _Optional[_Iterable[_Union[Loss, _Mapping]]] = ..., report_seq: _Optional[int] = ..., has_state: bool = ..., cancelled_by: _Optional[str] = ..., rounds: _Optional[_Union[RoundsUpdate, _Mapping]] = ..., paused: bool = ..., skipping: bool = ..., evicted_by: _Optional[str] = ..., running_workers: _Optional[_Iterable[str]] = ...) -> None: ...

class Loss(_message.Message):
    __slots__ = ("task_id", "worker", "splits", "reason", "elements", "trainer_id", "restarts")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker: str
    splits: int
    reason: str
    elements: int
    trainer_id: str
    restarts: bool
    def __init__(self, task_id: _Optional[str] = ..., worker: _Optional[str] = ..., splits: _Optional[int] = ..., reason: _Optional[str] = ..., elements: _Optional[int] = ..., trainer_id: _Optional[str] = ..., restarts: bool = ...) -> None: ...

class EndedTask(_message.Message):
    __slots__ = ("task_id", "incarnation", "received")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    incarnation: int
    received: int
    def __init__(self, task_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("client_id", "ended", "final_report")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FINAL_REPORT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    ended: _containers.RepeatedCompositeFieldContainer[EndedTask]
    final_report: ClientReport
    def __init__(self, client_id: _Optional[str] = ..., ended: _Optional[_Iterable[_Union[EndedTask, _Mapping]]] = ..., final_report: _Optional[_Union[ClientReport, _Mapping]] = ...) -> None: ...

class EndReply(_message.Message):
    __slots__ = ("finished", "tasks", "cancelled_by", "position", "sole_client")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_BY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SOLE_CLIENT_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    tasks: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    cancelled_by: str
    position: IterationPosition
    sole_client: bool
    def __init__(self, finished: bool = ..., tasks: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ..., cancelled_by: _Optional[str] = ..., position: _Optional[_Union[IterationPosition, _Mapping]] = ..., sole_client: bool = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("job_name", "dataset_id")
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    dataset_id: str
    def __init__(self, job_name: _Optional[str] = ..., dataset_id: _Optional[str] = ...) -> None: ...

class ReceiptRequest(_message.Message):
    __slots__ = ("job_name", "epoch")
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    epoch: int
    def __init__(self, job_name: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("job", "epoch", "mode", "cached", "over", "expected", "delivered", "missing", "twice", "readers", "parts", "notes", "stopped", "digest")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TWICE_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    mode: str
    cached: bool
    over: bool
    expected: int
    delivered: int
    missing: int
    twice: int
    readers: _containers.RepeatedCompositeFieldContainer[ReaderReceipt]
    parts: _containers.RepeatedCompositeFieldContainer[PartReceipt]
    notes: _containers.RepeatedScalarFieldContainer[str]
    stopped: str
    digest: str
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., mode: _Optional[str] = ..., cached: bool = ..., over: bool = ..., expected: _Optional[int] = ..., delivered: _Optional[int] = ..., missing: _Optional[int] = ..., twice: _Optional[int] = ..., readers: _Optional[_Iterable[_Union[ReaderReceipt, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartReceipt, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., stopped: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class ReaderReceipt(_message.Message):
    __slots__ = ("reader", "state", "elements", "missing", "digest")
    READER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    reader: str
    state: str
    elements: int
    missing: int
    digest: str
    def __init__(self, reader: _Optional[str] = ..., state: _Optional[str] = ..., elements: _Optional[int] = ..., missing: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class PartReceipt(_message.Message):
    __slots__ = ("task_id", "worker", "state", "expected", "delivered", "missing_at", "exact", "restarts")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    MISSING_AT_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker: str
    state: str
    expected: int
    delivered: int
    missing_at: _containers.RepeatedScalarFieldContainer[str]
    exact: bool
    restarts: int
    def __init__(self, task_id: _Optional[str] = ..., worker: _Optional[str] = ..., state: _Optional[str] = ..., expected: _Optional[int] = ..., delivered: _Optional[int] = ..., missing_at: _Optional[_Iterable[str]] = ..., exact: bool = ..., restarts: _Optional[int] = ...) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("action", "name", "requested_by", "workers", "minimum", "maximum")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    action: str
    name: str
    requested_by: str
    workers: int
    minimum: int
    maximum: int
    def __init__(self, action: _Optional[str] = ..., name: _Optional[str] = ..., requested_by: _Optional[str] = ..., workers: _Optional[int] = ..., minimum: _Optional[int] = ..., maximum: _Optional[int] = ...) -> None: ...

class ControlReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class StageReport(_message.Message):
    __slots__ = ("name", "depth", "elements", "busy_ns", "wait_ns", "buffered", "capacity", "threads")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    name: str
    depth: int
    elements: int
    busy_ns: int
    wait_ns: int
    buffered: int
    capacity: int
    threads: int
    def __init__(self, name: _Optional[str] = ..., depth: _Optional[int] = ..., elements: _Optional[int] = ..., busy_ns: _Optional[int] = ..., wait_ns: _Optional[int] = ..., buffered: _Optional[int] = ..., capacity: _Optional[int] = ..., threads: _Optional[int] = ...) -> None: ...

class TrainerReport(_message.Message):
    __slots__ = ("trainer_id", "clients", "consumed", "offset", "hits", "misses", "skipped", "spilled", "lag_bytes", "on_lag", "rate", "eviction_in_s", "in_flight_ns", "consumed_ranges")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SPILLED_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    ON_LAG_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    EVICTION_IN_S_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_NS_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_RANGES_FIELD_NUMBER: _ClassVar[int]
    trainer_id: str
    clients: int
    consumed: int
    offset: int
    hits: int
    misses: int
    skipped: int
    spilled: int
    lag_bytes: int
    on_lag: str
    rate: float
    eviction_in_s: float
    in_flight_ns: int
    consumed_ranges: _containers.RepeatedCompositeFieldContainer[IndexRange]
    def __init__(self, trainer_id: _Optional[str] = ..., clients: _Optional[int] = ..., consumed: _Optional[int] = ..., offset: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., skipped: _Optional[int] = ..., spilled: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., on_lag: _Optional[str] = ..., rate: _Optional[float] = ..., eviction_in_s: _Optional[float] = ..., in_flight_ns: _Optional[int] = ..., consumed_ranges: _Optional[_Iterable[_Union[IndexRange, _Mapping]]] = ...) -> None: ...

class LinkReport(_message.Message):
    __slots__ = ("client_id", "trainer_id", "transfer", "reason", "frame_slices", "fallbacks", "held_bytes", "fallback_reason", "sent", "task_id", "worker", "at_end")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FRAME_SLICES_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    trainer_id: str
    transfer: str
    reason: str
    frame_slices: int
    fallbacks: int
    held_bytes: int
    fallback_reason: str
    sent: int
    task_id: str
    worker: str
    at_end: bool
    def __init__(self, client_id: _Optional[str] = ..., trainer_id: _Optional[str] = ..., transfer: _Optional[str] = ..., reason: _Optional[str] = ..., frame_slices: _Optional[int] = ..., fallbacks: _Optional[int] = ..., held_bytes: _Optional[int] = ..., fallback_reason: _Optional[str] = ..., sent: _Optional[int] = ..., task_id: _Optional[str] = ..., worker: _Optional[str] = ..., at_end: bool = ...) -> None: ...

class ResumePosition(_message.Message):
    __slots__ = ("index", "pipeline_position", "splits", "repeated_ms")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_POSITION_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_MS_FIELD_NUMBER: _ClassVar[int]
    index: int
    pipeline_position: str
    splits: _containers.RepeatedCompositeFieldContainer[FinishedSplits]
    repeated_ms: int
    def __init__(self, index: _Optional[int] = ..., pipeline_position: _Optional[str] = ..., splits: _Optional[_Iterable[_Union[FinishedSplits, _Mapping]]] = ..., repeated_ms: _Optional[int] = ...) -> None: ...

class FinishedSplits(_message.Message):
    __slots__ = ("provider", "repetition", "count")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    provider: int
    repetition: int
    count: int
    def __init__(self, provider: _Optional[int] = ..., repetition: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class SplitGrant(_message.Message):
    __slots__ = ("provider", "repetition", "cursor", "first", "end")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    provider: int
    repetition: int
    cursor: int
    first: int
    end: int
    def __init__(self, provider: _Optional[int] = ..., repetition: _Optional[int] = ..., cursor: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class LostReader(_message.Message):
    __slots__ = ("client_id", "consumed")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    consumed: int
    def __init__(self, client_id: _Optional[str] = ..., consumed: _Optional[int] = ...) -> None: ...

class TaskReport(_message.Message):
    __slots__ = ("task_id", "state", "head", "tail", "window_bytes", "capacity_bytes", "evicted", "errors", "sent_elements", "sent_bytes", "trainers", "stages", "splits_done", "readers", "clients", "grants", "spill_bytes", "closing", "compression", "held_back_ns", "links", "resume_position", "exhausted", "missing_elements", "incarnation", "repeated", "lost_readers")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    SENT_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    SPLITS_DONE_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    SPILL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_NS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    RESUME_POSITION_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    MISSING_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    LOST_READERS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    state: str
    head: int
    tail: int
    window_bytes: int
    capacity_bytes: int
    evicted: int
    errors: int
    sent_elements: int
    sent_bytes: int
    trainers: _containers.RepeatedCompositeFieldContainer[TrainerReport]
    stages: _containers.RepeatedCompositeFieldContainer[StageReport]
    splits_done: _containers.RepeatedScalarFieldContainer[int]
    readers: int
    clients: _containers.RepeatedScalarFieldContainer[str]
    grants: _containers.RepeatedCompositeFieldContainer[SplitGrant]
    spill_bytes: int
    closing: bool
    compression: str
    held_back_ns: int
    links: _containers.RepeatedCompositeFieldContainer[LinkReport]
    resume_position: ResumePosition
    exhausted: bool
    missing_elements: int
    incarnation: int
    repeated: int
    lost_readers: _containers.RepeatedCompositeFieldContainer[LostReader]
    def __init__(self, task_id: _Optional[str] = ..., state: _Optional[str] = ..., head: _Optional[int] = ..., tail: _Optional[int] = ..., window_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., evicted: _Optional[int] = ..., errors: _Optional[int] = ..., sent_elements: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., trainers: _Optional[_Iterable[_Union[TrainerReport, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[StageReport, _Mapping]]] = ..., splits_done: _Optional[_Iterable[int]] = ..., readers: _Optional[int] = ..., clients: _Optional[_Iterable[str]] = ..., grants: _Optional[_Iterable[_Union[SplitGrant, _Mapping]]] = ..., spill_bytes: _Optional[int] = ..., closing: bool = ..., compression: _Optional[str] = ..., held_back_ns: _Optional[int] = ..., links: _Optional[_Iterable[_Union[LinkReport, _Mapping]]] = ..., resume_position: _Optional[_Union[ResumePosition, _Mapping]] = ..., exhausted: bool = ..., missing_elements: _Optional[int] = ..., incarnation: _Optional[int] = ..., repeated: _Optional[int] = ..., lost_readers: _Optional[_Iterable[_Union[LostReader, _Mapping]]] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("uid", "name", "address", "isolation", "pid", "capacity_bytes", "rss_bytes", "tasks", "ended", "seq", "leaving", "draining", "clock_ns", "late_ns", "latency_samples", "cpu_ns", "cpus", "idle_ns", "last_release", "host", "host_id", "python", "notices", "host_use", "tags", "data_port")
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    LATE_NS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    IDLE_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_RELEASE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    HOST_USE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    uid: str
    name: str
    address: str
    isolation: str
    pid: int
    capacity_bytes: int
    rss_bytes: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskReport]
    ended: _containers.RepeatedScalarFieldContainer[str]
    seq: int
    leaving: bool
    draining: bool
    clock_ns: int
    late_ns: int
    latency_samples: int
    cpu_ns: int
    cpus: int
    idle_ns: int
    last_release: int
    host: str
    host_id: str
    python: str
    notices: _containers.RepeatedScalarFieldContainer[str]
    host_use: HostUse
    tags: _containers.RepeatedScalarFieldContainer[str]
    data_port: int
    def __init__(self, uid: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., isolation: _Optional[str] = ..., pid: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskReport, _Mapping]]] = ..., ended: _Optional[_Iterable[str]] = ..., seq: _Optional[int] = ..., leaving: bool = ..., draining: bool = ..., clock_ns: _Optional[int] = ..., late_ns: _Optional[int] = ..., latency_samples: _Optional[int] = ..., cpu_ns: _Optional[int] = ..., cpus: _Optional[int] = ..., idle_ns: _Optional[int] = ..., last_release: _Optional[int] = ..., host: _Optional[str] = ..., host_id: _Optional[str] = ..., python: _Optional[str] = ..., notices: _Optional[_Iterable[str]] = ..., host_use: _Optional[_Union[HostUse, _Mapping]] = ..., tags: _Optional[_Iterable[str]] = ..., data_port: _Optional[int] = ...) -> None: ...

class GpuStatus(_message.Message):
    __slots__ = ("name", "busy_percent", "memory_used_bytes", "memory_total_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    busy_percent: int
    memory_used_bytes: int
    memory_total_bytes: int
    def __init__(self, name: _Optional[str] = ..., busy_percent: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ...) -> None: ...

class HostUse(_message.Message):
    __slots__ = ("memory_used_bytes", "memory_total_bytes", "gpus")
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    memory_used_bytes: int
    memory_total_bytes: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuStatus]
    def __init__(self, memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuStatus, _Mapping]]] = ...) -> None: ...

class TaskOrder(_message.Message):
    __slots__ = ("task_id", "dataset_id", "job_name", "iteration", "incarnation", "mode", "cached", "num_providers", "num_shards", "shard", "entropy", "endless", "paused", "position", "num_consumers", "definition", "leftovers", "weight")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    ENDLESS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    LEFTOVERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    dataset_id: str
    job_name: str
    iteration: int
    incarnation: int
    mode: str
    cached: bool
    num_providers: int
    num_shards: int
    shard: int
    entropy: int
    endless: bool
    paused: bool
    position: TaskPosition
    num_consumers: int
    definition: str
    leftovers: Leftovers
    weight: float
    def __init__(self, task_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., job_name: _Optional[str] = ..., iteration: _Optional[int] = ..., incarnation: _Optional[int] = ..., mode: _Optional[str] = ..., cached: bool = ..., num_providers: _Optional[int] = ..., num_shards: _Optional[int] = ..., shard: _Optional[int] = ..., entropy: _Optional[int] = ..., endless: bool = ..., paused: bool = ..., position: _Optional[_Union[TaskPosition, _Mapping]] = ..., num_consumers: _Optional[int] = ..., definition: _Optional[str] = ..., leftovers: _Optional[_Union[Leftovers, _Mapping]] = ..., weight: _Optional[float] = ...) -> None: ...

class Leftovers(_message.Message):
    __slots__ = ("consumers", "elements")
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedScalarFieldContainer[int]
    elements: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, consumers: _Optional[_Iterable[int]] = ..., elements: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerOrder(_message.Message):
    __slots__ = ("name", "start", "report_seq", "welcome", "evict_trainers", "instance", "drain", "releases", "closed", "drop", "cpus_of_host_workers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    REPORT_SEQ_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    EVICT_TRAINERS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    CPUS_OF_HOST_WORKERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: _containers.RepeatedCompositeFieldContainer[TaskOrder]
    report_seq: int
    welcome: bool
    evict_trainers: _containers.RepeatedCompositeFieldContainer[TrainerEviction]
    instance: str
    drain: bool
    releases: _containers.RepeatedCompositeFieldContainer[ClientRelease]
    closed: _containers.RepeatedCompositeFieldContainer[ClosedIteration]
    drop: _containers.RepeatedCompositeFieldContainer[DroppedTask]
    cpus_of_host_workers: int
    def __init__(self, name: _Optional[str] = ..., start: _Optional[_Iterable[_Union[TaskOrder, _Mapping]]] = ..., report_seq: _Optional[int] = ..., welcome: bool = ..., evict_trainers: _Optional[_Iterable[_Union[TrainerEviction, _Mapping]]] = ..., instance: _Optional[str] = ..., drain: bool = ..., releases: _Optional[_Iterable[_Union[ClientRelease, _Mapping]]] = ..., closed: _Optional[_Iterable[_Union[ClosedIteration, _Mapping]]] = ..., drop: _Optional[_Iterable[_Union[DroppedTask, _Mapping]]] = ..., cpus_of_host_workers: _Optional[int] = ...) -> None: ...

class DroppedTask(_message.Message):
    __slots__ = ("task_id", "incarnation")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    incarnation: int
    def __init__(self, task_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ClosedIteration(_message.Message):
    __slots__ = ("task_id", "incarnation", "clients")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    incarnation: int
    clients: _containers.RepeatedCompositeFieldContainer[JoinedClient]
    def __init__(self, task_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., clients: _Optional[_Iterable[_Union[JoinedClient, _Mapping]]] = ...) -> None: ...

class JoinedClient(_message.Message):
    __slots__ = ("client_id", "trainer_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    trainer_id: str
    def __init__(self, client_id: _Optional[str] = ..., trainer_id: _Optional[str] = ...) -> None: ...

class ClientRelease(_message.Message):
    __slots__ = ("client_id", "number", "died", "holdings")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    number: int
    died: bool
    holdings: _containers.RepeatedCompositeFieldContainer[TaskHolding]
    def __init__(self, client_id: _Optional[str] = ..., number: _Optional[int] = ..., died: bool = ..., holdings: _Optional[_Iterable[_Union[TaskHolding, _Mapping]]] = ...) -> None: ...

class TrainerEviction(_message.Message):
    __slots__ = ("task_id", "trainer_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    trainer_id: str
    def __init__(self, task_id: _Optional[str] = ..., trainer_id: _Optional[str] = ...) -> None: ...

class EvictTrainerRequest(_message.Message):
    __slots__ = ("job_name", "trainer_id", "requested_by")
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    trainer_id: str
    requested_by: str
    def __init__(self, job_name: _Optional[str] = ..., trainer_id: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class TaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class PeekRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class PeekReply(_message.Message):
    __slots__ = ("elements",)
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    elements: _containers.RepeatedCompositeFieldContainer[ElementPreview]
    def __init__(self, elements: _Optional[_Iterable[_Union[ElementPreview, _Mapping]]] = ...) -> None: ...

class ElementPreview(_message.Message):
    __slots__ = ("index", "leaves", "more_leaves", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    MORE_LEAVES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    leaves: _containers.RepeatedCompositeFieldContainer[LeafPreview]
    more_leaves: int
    error: str
    def __init__(self, index: _Optional[int] = ..., leaves: _Optional[_Iterable[_Union[LeafPreview, _Mapping]]] = ..., more_leaves: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class LeafPreview(_message.Message):
    __slots__ = ("path", "shape", "dtype", "values", "thumbnail")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    THUMBNAIL_FIELD_NUMBER: _ClassVar[int]
    path: str
    shape: str
    dtype: str
    values: str
    thumbnail: bytes
    def __init__(self, path: _Optional[str] = ..., shape: _Optional[str] = ..., dtype: _Optional[str] = ..., values: _Optional[str] = ..., thumbnail: _Optional[bytes] = ...) -> None: ...

class SplitsRequest(_message.Message):
    __slots__ = ("task_id", "provider", "repetition", "cursor", "want", "incarnation")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    provider: int
    repetition: int
    cursor: int
    want: int
    incarnation: int
    def __init__(self, task_id: _Optional[str] = ..., provider: _Optional[int] = ..., repetition: _Optional[int] = ..., cursor: _Optional[int] = ..., want: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class SplitsReply(_message.Message):
    __slots__ = ("first", "end", "done", "refused")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    done: bool
    refused: bool
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., done: bool = ..., refused: bool = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class CursorStatus(_message.Message):
    __slots__ = ("task_id", "worker", "offset", "lag", "in_flight_ns")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_NS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker: str
    offset: int
    lag: int
    in_flight_ns: int
    def __init__(self, task_id: _Optional[str] = ..., worker: _Optional[str] = ..., offset: _Optional[int] = ..., lag: _Optional[int] = ..., in_flight_ns: _Optional[int] = ...) -> None: ...

class TrainerStatus(_message.Message):
    __slots__ = ("trainer_id", "clients", "elements", "hits", "misses", "skipped", "lost", "wait_ns", "active_ns", "cursors", "spilled", "lag_bytes", "on_lag", "rate", "eviction_in_s", "decode_ns", "convert_ns", "evicted_by", "origin", "lost_parts")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_NS_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    SPILLED_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    ON_LAG_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    EVICTION_IN_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    CONVERT_NS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BY_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOST_PARTS_FIELD_NUMBER: _ClassVar[int]
    trainer_id: str
    clients: int
    elements: int
    hits: int
    misses: int
    skipped: int
    lost: int
    wait_ns: int
    active_ns: int
    cursors: _containers.RepeatedCompositeFieldContainer[CursorStatus]
    spilled: int
    lag_bytes: int
    on_lag: str
    rate: float
    eviction_in_s: float
    decode_ns: int
    convert_ns: int
    evicted_by: str
    origin: ClientOrigin
    lost_parts: int
    def __init__(self, trainer_id: _Optional[str] = ..., clients: _Optional[int] = ..., elements: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., skipped: _Optional[int] = ..., lost: _Optional[int] = ..., wait_ns: _Optional[int] = ..., active_ns: _Optional[int] = ..., cursors: _Optional[_Iterable[_Union[CursorStatus, _Mapping]]] = ..., spilled: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., on_lag: _Optional[str] = ..., rate: _Optional[float] = ..., eviction_in_s: _Optional[float] = ..., decode_ns: _Optional[int] = ..., convert_ns: _Optional[int] = ..., evicted_by: _Optional[str] = ..., origin: _Optional[_Union[ClientOrigin, _Mapping]] = ..., lost_parts: _Optional[int] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task_id", "worker", "iteration", "incarnation", "state", "head", "tail", "window_bytes", "capacity_bytes", "evicted", "errors", "spill_bytes", "compression", "held_back_ns")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    SPILL_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_NS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker: str
    iteration: int
    incarnation: int
    state: str
    head: int
    tail: int
    window_bytes: int
    capacity_bytes: int
    evicted: int
    errors: int
    spill_bytes: int
    compression: str
    held_back_ns: int
    def __init__(self, task_id: _Optional[str] = ..., worker: _Optional[str] = ..., iteration: _Optional[int] = ..., incarnation: _Optional[int] = ..., state: _Optional[str] = ..., head: _Optional[int] = ..., tail: _Optional[int] = ..., window_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., evicted: _Optional[int] = ..., errors: _Optional[int] = ..., spill_bytes: _Optional[int] = ..., compression: _Optional[str] = ..., held_back_ns: _Optional[int] = ...) -> None: ...

class SplitStatus(_message.Message):
    __slots__ = ("source", "repetition", "total", "done", "in_hand", "lost")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    IN_HAND_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    source: str
    repetition: int
    total: int
    done: int
    in_hand: int
    lost: int
    def __init__(self, source: _Optional[str] = ..., repetition: _Optional[int] = ..., total: _Optional[int] = ..., done: _Optional[int] = ..., in_hand: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class GrantStatus(_message.Message):
    __slots__ = ("worker", "task_id", "iteration", "provider", "repetition", "first", "end", "state", "granted_at", "ended_at", "reassigned")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    REASSIGNED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    task_id: str
    iteration: int
    provider: int
    repetition: int
    first: int
    end: int
    state: str
    granted_at: float
    ended_at: float
    reassigned: bool
    def __init__(self, worker: _Optional[str] = ..., task_id: _Optional[str] = ..., iteration: _Optional[int] = ..., provider: _Optional[int] = ..., repetition: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ..., state: _Optional[str] = ..., granted_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., reassigned: bool = ...) -> None: ...

class ShardStatus(_message.Message):
    __slots__ = ("shard", "state", "worker")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    shard: int
    state: str
    worker: str
    def __init__(self, shard: _Optional[int] = ..., state: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class ConsumerStatus(_message.Message):
    __slots__ = ("index", "client_id", "state", "round", "last_change_age_s")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_AGE_S_FIELD_NUMBER: _ClassVar[int]
    index: int
    client_id: str
    state: str
    round: int
    last_change_age_s: float
    def __init__(self, index: _Optional[int] = ..., client_id: _Optional[str] = ..., state: _Optional[str] = ..., round: _Optional[int] = ..., last_change_age_s: _Optional[float] = ...) -> None: ...

class RoundsStatus(_message.Message):
    __slots__ = ("round", "workers", "consumers", "halted", "dropped", "waits_for")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    round: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerStatus]
    halted: bool
    dropped: int
    waits_for: str
    def __init__(self, round: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., consumers: _Optional[_Iterable[_Union[ConsumerStatus, _Mapping]]] = ..., halted: bool = ..., dropped: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("name", "anonymous", "dataset_id", "pipeline", "mode", "cached", "iteration", "state", "clients", "produced", "consumed", "lost_splits", "tasks", "trainers", "splits", "stages", "shards", "paused_by", "grants", "rounds", "links", "compression", "target_workers", "num_consumers", "at_end", "on_worker_loss", "guarantee", "guarantee_reason", "ranks", "receipt", "weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    LOST_SPLITS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    ON_WORKER_LOSS_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_REASON_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
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
    lost_splits: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    trainers: _containers.RepeatedCompositeFieldContainer[TrainerStatus]
    splits: _containers.RepeatedCompositeFieldContainer[SplitStatus]
    stages: _containers.RepeatedCompositeFieldContainer[StageReport]
    shards: _containers.RepeatedCompositeFieldContainer[ShardStatus]
    paused_by: str
    grants: _containers.RepeatedCompositeFieldContainer[GrantStatus]
    rounds: RoundsStatus
    links: _containers.RepeatedCompositeFieldContainer[LinkReport]
    compression: str
    target_workers: str
    num_consumers: int
    at_end: str
    on_worker_loss: str
    guarantee: str
    guarantee_reason: str
    ranks: int
    receipt: str
    weight: float
    def __init__(self, name: _Optional[str] = ..., anonymous: bool = ..., dataset_id: _Optional[str] = ..., pipeline: _Optional[str] = ..., mode: _Optional[str] = ..., cached: bool = ..., iteration: _Optional[int] = ..., state: _Optional[str] = ..., clients: _Optional[int] = ..., produced: _Optional[int] = ..., consumed: _Optional[int] = ..., lost_splits: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ..., trainers: _Optional[_Iterable[_Union[TrainerStatus, _Mapping]]] = ..., splits: _Optional[_Iterable[_Union[SplitStatus, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[StageReport, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[ShardStatus, _Mapping]]] = ..., paused_by: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[GrantStatus, _Mapping]]] = ..., rounds: _Optional[_Union[RoundsStatus, _Mapping]] = ..., links: _Optional[_Iterable[_Union[LinkReport, _Mapping]]] = ..., compression: _Optional[str] = ..., target_workers: _Optional[str] = ..., num_consumers: _Optional[int] = ..., at_end: _Optional[str] = ..., on_worker_loss: _Optional[str] = ..., guarantee: _Optional[str] = ..., guarantee_reason: _Optional[str] = ..., ranks: _Optional[int] = ..., receipt: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("name", "uid", "address", "state", "isolation", "pid", "tasks", "produced", "sent_elements", "sent_bytes", "busy_ns", "cache_bytes", "capacity_bytes", "rss_bytes", "errors", "readers", "heartbeat_age_s", "stderr", "clock_ns", "late_ns", "latency_samples", "cpu_ns", "cpus", "idle_ns", "host", "host_id", "tags")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    SENT_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    LATE_NS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    IDLE_NS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    address: str
    state: str
    isolation: str
    pid: int
    tasks: int
    produced: int
    sent_elements: int
    sent_bytes: int
    busy_ns: int
    cache_bytes: int
    capacity_bytes: int
    rss_bytes: int
    errors: int
    readers: int
    heartbeat_age_s: float
    stderr: _containers.RepeatedScalarFieldContainer[str]
    clock_ns: int
    late_ns: int
    latency_samples: int
    cpu_ns: int
    cpus: int
    idle_ns: int
    host: str
    host_id: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., isolation: _Optional[str] = ..., pid: _Optional[int] = ..., tasks: _Optional[int] = ..., produced: _Optional[int] = ..., sent_elements: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., busy_ns: _Optional[int] = ..., cache_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., errors: _Optional[int] = ..., readers: _Optional[int] = ..., heartbeat_age_s: _Optional[float] = ..., stderr: _Optional[_Iterable[str]] = ..., clock_ns: _Optional[int] = ..., late_ns: _Optional[int] = ..., latency_samples: _Optional[int] = ..., cpu_ns: _Optional[int] = ..., cpus: _Optional[int] = ..., idle_ns: _Optional[int] = ..., host: _Optional[str] = ..., host_id: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("memory_used_bytes", "memory_total_bytes", "gpus", "name", "host_id")
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    memory_used_bytes: int
    memory_total_bytes: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuStatus]
    name: str
    host_id: str
    def __init__(self, memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuStatus, _Mapping]]] = ..., name: _Optional[str] = ..., host_id: _Optional[str] = ...) -> None: ...

class EventStatus(_message.Message):
    __slots__ = ("time", "level", "text")
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    time: float
    level: str
    text: str
    def __init__(self, time: _Optional[float] = ..., level: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class OlderJobs(_message.Message):
    __slots__ = ("jobs", "produced", "consumed", "lost_splits")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    LOST_SPLITS_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    produced: int
    consumed: int
    lost_splits: int
    def __init__(self, jobs: _Optional[int] = ..., produced: _Optional[int] = ..., consumed: _Optional[int] = ..., lost_splits: _Optional[int] = ...) -> None: ...

class AutoscaleStatus(_message.Message):
    __slots__ = ("minimum", "maximum", "wanted", "reason")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    maximum: int
    wanted: int
    reason: str
    def __init__(self, minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., wanted: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("version", "seq", "time", "service", "target", "started", "workers", "jobs", "events", "scalable", "older", "network", "autoscale", "hosts", "launcher")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SCALABLE_FIELD_NUMBER: _ClassVar[int]
    OLDER_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    AUTOSCALE_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    version: int
    seq: int
    time: float
    service: str
    target: str
    started: float
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    events: _containers.RepeatedCompositeFieldContainer[EventStatus]
    scalable: bool
    older: OlderJobs
    network: str
    autoscale: AutoscaleStatus
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    launcher: str
    def __init__(self, version: _Optional[int] = ..., seq: _Optional[int] = ..., time: _Optional[float] = ..., service: _Optional[str] = ..., target: _Optional[str] = ..., started: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[EventStatus, _Mapping]]] = ..., scalable: bool = ..., older: _Optional[_Union[OlderJobs, _Mapping]] = ..., network: _Optional[str] = ..., autoscale: _Optional[_Union[AutoscaleStatus, _Mapping]] = ..., hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., launcher: _Optional[str] = ...) -> None: ...
