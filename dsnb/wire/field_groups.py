"""Fields that several messages, records and snapshots have: declared once here, inherited by the messages.

`shared` copies a group of fields from one object to another, so that a field that is added to a group reaches all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

COLOCATED = "COLOCATED"
"""The tag of workers, and the deployment mode, for workers in the trainers' own processes."""


def is_colocated(tags: Iterable[str]) -> bool:
    """Whether a worker has the tag; as in the tf.data service, case does not matter."""
    return any(tag.upper() == COLOCATED for tag in tags)


class WorkParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a job need to know of it.

    Attributes:
        mode: The name of a `ShardingPolicy`, such as "DYNAMIC".
        cached: Whether its readers share elements through the cross-trainer cache.
        num_consumers: The number of consumers of a coordinated read; 0 for other reads.
        weight: The argument `weight` of `distribute`; in a request, 0 stands for 1.
    """

    mode: str = ""
    cached: bool = False
    num_consumers: int = 0
    weight: float = 0.0


class JobParameters(WorkParameters, frozen=True, kw_only=True):
    """What all readers of a job must agree on.

    Attributes:
        compression: The argument `compression` of `distribute`.
        target_workers: The argument `target_workers` of `distribute`.
        ranks: The number of ranks that read in the order of the splits, each its elements; 0 for other reads.
        at_end: The argument `at_end` of `distribute`; empty unless there are consumers or ranks.
        on_worker_loss: The argument `on_worker_loss` of `distribute`; empty for None.
    """

    compression: str = ""
    target_workers: str = ""
    ranks: int = 0
    at_end: str = ""
    on_worker_loss: str = ""


class ReaderCount(msgspec.Struct, frozen=True, kw_only=True):
    """What a client consumed, by its own count.

    Attributes:
        elements: How many elements.
        digest: The digest of their contents; empty if it keeps none.
    """

    elements: int = 0
    digest: bytes = b""


class WorkerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which process a worker is.

    Attributes:
        name: "w0", "w1" and so on, in the order in which workers join.
        uid: Its unique id.
        address: Where clients reach it, as "host:port".
        isolation: "thread" (in the process that started the service) or "process".
        pid: The id of its process.
        tags: The argument `worker_tags` of `WorkerConfig`.
    """

    name: str = ""
    uid: str = ""
    address: str = ""
    isolation: str = ""
    pid: int = 0
    tags: tuple[str, ...] = ()


class WorkerUse(WorkerIdentity, frozen=True, kw_only=True):
    """A worker, its host, and what it uses of it.

    Attributes:
        capacity_bytes: The most bytes of elements that it may hold, over all tasks.
        rss_bytes: Memory of its process, which thread workers share with others.
        clock_ns: When its counters had these values, by its own monotonic clock.
        late_ns: Total delay with which a sleeping thread of it woke up too late, because others used the GIL or the
            CPU. Measured in thread workers only.
        latency_samples: How often that delay was measured.
        cpu_ns: CPU time of its process, which thread workers share with others.
        cpus: The number of CPUs that it may use; 0 if unknown.
        idle_ns: Idle time of those CPUs, summed over them, whichever processes use them; 0 if unknown.
        host: The name of its host.
        host_id: The same for all workers that compete for the same CPUs; empty if unknown.
    """

    capacity_bytes: int = 0
    rss_bytes: int = 0
    clock_ns: int = 0
    late_ns: int = 0
    latency_samples: int = 0
    cpu_ns: int = 0
    cpus: int = 0
    idle_ns: int = 0
    host: str = ""
    host_id: str = ""


class LogProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a task's log of elements is.

    Attributes:
        head: Number of elements produced so far, which is the index of the next one.
        tail: Index of the first element that is still in memory.
        evicted: Elements that were evicted to make room.
    """

    head: int = 0
    tail: int = 0
    evicted: int = 0


class TaskProgress(LogProgress, frozen=True, kw_only=True):
    """How far a task is, and what it keeps.

    Attributes:
        window_bytes: Bytes of the elements in memory.
        capacity_bytes: Maximum bytes of the elements in memory.
        errors: Elements that were replaced by an error.
        spill_bytes: Bytes on disk, for trainers that fall behind with `on_lag="spill"`.
        compression: The codec for readers that use gRPC, and why it was chosen; empty while there are none.
        held_back_ns: For how long its worker held it back, so that other jobs get their shares of the processors.
    """

    window_bytes: int = 0
    capacity_bytes: int = 0
    errors: int = 0
    spill_bytes: int = 0
    compression: str = ""
    held_back_ns: int = 0


class CacheCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What the cross-trainer cache did for a trainer.

    Attributes:
        hits: Elements that were in the cache already because another trainer had requested them first.
        misses: Elements that were produced for this trainer.
        skipped: Elements that were evicted from the window before this trainer read them.
        spilled: Elements sent to it that came from a worker's disk.
    """

    hits: int = 0
    misses: int = 0
    skipped: int = 0
    spilled: int = 0


def shared(group: type[msgspec.Struct], source: Any) -> dict[str, Any]:
    """The fields of a group as keyword arguments, taken from an object that has attributes of the same names.

    Example:
        >>> shared(LogProgress, TaskProgress(head=5, errors=1))
        {'head': 5, 'tail': 0, 'evicted': 0}
    """
    return {name: getattr(source, name) for name in group.__struct_fields__}
