"""What `start` was asked for; known before any role is imported."""

from __future__ import annotations

from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What `start` was asked for, apart from name and number of workers."""

    isolation: str = "thread"
    port: int = 0
    host: str = "127.0.0.1"
    token: str | None = None
    work_dir: str | None = None
    cross_trainer_cache_size_bytes: int | None = None
    max_readers: int | None = None
    shared_memory_bytes: int | None = None
    consumer_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        if self.isolation not in {"thread", "process"}:
            raise InvalidArgumentError(
                f"the isolation {self.isolation!r} is unknown",
                did="nothing was started",
                hint='use "thread" (starts at once) or "process" (not held up by what this interpreter does)',
            )
