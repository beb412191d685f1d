"""`ClusterSettings`: the arguments of `start`. This module imports no dispatcher or worker code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dsnb.arguments import integer

worker_count: Final = integer(0, 1_000, "pass 0 to 1,000 workers")


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The arguments of `start`, except the name and the number of workers."""

    isolation: str = "thread"
    port: int = 0
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    work_dir: str | None = None
    cross_trainer_cache_size_bytes: int | None = None
    max_readers: int | None = None
    shared_memory_bytes: int | None = None
    consumer_timeout_ms: int | None = None
