"""`ClusterSettings`: the arguments of `start`. This module imports no dispatcher or worker code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dsnb.arguments import integer
from dsnb.errors import InvalidArgumentError

worker_count: Final = integer(0, 1_000, "pass 0 to 1,000 workers")
_LIMITS_HINT: Final = "pass the least and the greatest number of workers, as in autoscale=(1, 8)"


def worker_limits(name: str, value: Any) -> tuple[int, int]:
    """The least and the greatest number of workers, from a pair of them.

    Raises:
        InvalidArgumentError: the value is not such a pair.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InvalidArgumentError(f"{name}: {value!r} is not a pair of numbers", hint=_LIMITS_HINT)
    least, greatest = (integer(0, 1_000, _LIMITS_HINT)(name, one) for one in value)
    if greatest < max(1, least):
        raise InvalidArgumentError(f"{name}: from {least} to {greatest} workers is not possible", hint=_LIMITS_HINT)
    return least, greatest


class WorkerCount(NamedTuple):
    """How many workers were requested, and the limits between which the service may choose."""

    workers: int | None
    autoscale: tuple[int, int] | None

    def first(self, default: int) -> int:
        """The number of workers to start with."""
        if self.workers is not None or self.autoscale is None:
            return default if self.workers is None else self.workers
        least, greatest = self.autoscale
        return min(max(default, least), greatest)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The arguments of `start`, except the name and the number of workers."""

    isolation: str = "thread"
    on: Any = None
    port: int | str = 0
    host: str = "127.0.0.1"
    tls: bool | None = None
    token: str | None = field(default=None, repr=False)
    work_dir: str | None = None
    cross_trainer_cache_size_bytes: int | None = None
    max_readers: int | None = None
    shared_memory_bytes: int | None = None
    consumer_timeout_ms: int | None = None
    outlive_kernel: bool = False
