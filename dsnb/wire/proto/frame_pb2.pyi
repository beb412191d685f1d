from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Column(_message.Message):
    __slots__ = ("dtype", "shape", "ragged", "offset", "nbytes")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    RAGGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    ragged: bool
    offset: int
    nbytes: int
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., ragged: bool = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "traceback", "pickled", "notes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    PICKLED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    traceback: str
    pickled: bytes
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., pickled: _Optional[bytes] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class FrameHeader(_message.Message):
    __slots__ = ("task_id", "incarnation", "first", "count", "structure", "columns", "failure")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    incarnation: int
    first: int
    count: int
    structure: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    failure: Failure
    def __init__(self, task_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., structure: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class UnitMark(_message.Message):
    __slots__ = ("unit", "unit_end", "index", "ended", "skipped")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    UNIT_END_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    unit: int
    unit_end: int
    index: int
    ended: bool
    skipped: int
    def __init__(self, unit: _Optional[int] = ..., unit_end: _Optional[int] = ..., index: _Optional[int] = ..., ended: bool = ..., skipped: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("header", "total", "padding", "end", "recalled", "granted", "codec", "raw_bytes", "blocks", "checksum", "progress", "complete_rounds", "oldest_round", "files", "unit_mark", "data", "joined")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_ROUND_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    UNIT_MARK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    header: FrameHeader
    total: int
    padding: bytes
    end: bool
    recalled: bool
    granted: int
    codec: str
    raw_bytes: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    checksum: int
    progress: bool
    complete_rounds: int
    oldest_round: int
    files: str
    unit_mark: UnitMark
    data: bytes
    joined: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[FrameHeader, _Mapping]] = ..., total: _Optional[int] = ..., padding: _Optional[bytes] = ..., end: bool = ..., recalled: bool = ..., granted: _Optional[int] = ..., codec: _Optional[str] = ..., raw_bytes: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., checksum: _Optional[int] = ..., progress: bool = ..., complete_rounds: _Optional[int] = ..., oldest_round: _Optional[int] = ..., files: _Optional[str] = ..., unit_mark: _Optional[_Union[UnitMark, _Mapping]] = ..., data: _Optional[bytes] = ..., joined: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CachePolicy(_message.Message):
    __slots__ = ("on_lag", "start", "timeout_s", "start_together")
    ON_LAG_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    START_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    on_lag: str
    start: str
    timeout_s: float
    start_together: int
    def __init__(self, on_lag: _Optional[str] = ..., start: _Optional[str] = ..., timeout_s: _Optional[float] = ..., start_together: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("task_id", "client_id", "trainer_id", "received", "granted", "consumed", "max_bytes", "recall", "leave", "cache_policy", "instance", "compression", "codecs", "checksum", "why", "consumed_before", "consumed_before_count", "previous_client_id", "incarnation", "opening", "host_id", "want_files", "dequeued")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    CACHE_POLICY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_BEFORE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    WANT_FILES_FIELD_NUMBER: _ClassVar[int]
    DEQUEUED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    client_id: str
    trainer_id: str
    received: int
    granted: int
    consumed: int
    max_bytes: int
    recall: bool
    leave: bool
    cache_policy: CachePolicy
    instance: str
    compression: str
    codecs: _containers.RepeatedScalarFieldContainer[str]
    checksum: bool
    why: str
    consumed_before: _containers.RepeatedScalarFieldContainer[int]
    consumed_before_count: int
    previous_client_id: str
    incarnation: int
    opening: int
    host_id: str
    want_files: bool
    dequeued: int
    def __init__(self, task_id: _Optional[str] = ..., client_id: _Optional[str] = ..., trainer_id: _Optional[str] = ..., received: _Optional[int] = ..., granted: _Optional[int] = ..., consumed: _Optional[int] = ..., max_bytes: _Optional[int] = ..., recall: bool = ..., leave: bool = ..., cache_policy: _Optional[_Union[CachePolicy, _Mapping]] = ..., instance: _Optional[str] = ..., compression: _Optional[str] = ..., codecs: _Optional[_Iterable[str]] = ..., checksum: bool = ..., why: _Optional[str] = ..., consumed_before: _Optional[_Iterable[int]] = ..., consumed_before_count: _Optional[int] = ..., previous_client_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., opening: _Optional[int] = ..., host_id: _Optional[str] = ..., want_files: bool = ..., dequeued: _Optional[int] = ...) -> None: ...
