"""`CrossTrainerCache`: how one trainer shares a preprocessing pass with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dsnb.arguments import checked, integer, one_of, optional, seconds, short_repr, text
from dsnb.errors import InvalidArgumentError
from dsnb.wire.messages import CachePolicy


def _trainer_id(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)}: the cross-trainer cache requires a non-empty trainer ID",
            hint='give each trainer a name of its own: CrossTrainerCache("lr=0.1")',
        )
    return text(name, value)


@dataclass(frozen=True, slots=True, init=False)
class CrossTrainerCache:
    """Share one preprocessing pass with the other trainers of a job.

    Each worker keeps a sliding window of the most recent elements; every trainer of the job reads from it at its own
    pace. As in the tf.data service, the job needs a name and an endless dataset, and by default a trainer that falls
    behind the window skips the evicted elements.

    Args:
        trainer_id: Name of the trainer. Clients with the same id share one offset, so each element goes to one of them.
        on_lag: What happens when this trainer falls behind the window. "skip": it skips the evicted elements, which are
            counted. "wait": nothing is evicted before this trainer has it, so the faster trainers wait. "spill":
            evicted elements are kept on the worker's disk (`WorkerConfig.spill_dir`), so this trainer loses nothing and
            the others do not wait. Trainers of one job may choose differently.
        start: Where a new trainer begins: at the "oldest" element in the window, or at the "newest", the next one to be
            produced.
        start_together: Number of trainers that must have joined before any of them gets an element.
        timeout: Seconds without reading after which nothing is kept for this trainer and the others no longer wait for
            it. When it reads again it continues with what is in the window; the elements it missed are counted.

    Raises:
        InvalidArgumentError: for a value that is never valid.

    Example:
        >>> CrossTrainerCache("lr=0.1")
        CrossTrainerCache('lr=0.1')
        >>> CrossTrainerCache("slow", on_lag="spill")
        CrossTrainerCache('slow', on_lag='spill')
    """

    trainer_id: str
    on_lag: Literal["skip", "wait", "spill"]
    start: Literal["oldest", "newest"]
    start_together: int | None
    timeout: float

    @checked(
        trainer_id=_trainer_id,
        on_lag=one_of("skip", "wait", "spill"),
        start=one_of("oldest", "newest"),
        start_together=optional(integer(1, 1_000_000, "pass the number of trainers, or leave it out")),
        timeout=seconds,
    )
    def __init__(
        self,
        trainer_id: str,
        on_lag: Literal["skip", "wait", "spill"] = "skip",
        start: Literal["oldest", "newest"] = "oldest",
        start_together: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        for name, value in (
            ("trainer_id", trainer_id),
            ("on_lag", on_lag),
            ("start", start),
            ("start_together", start_together),
            ("timeout", timeout),
        ):
            object.__setattr__(self, name, value)

    @property
    def cache_policy(self) -> CachePolicy:
        """The same settings as a message for workers."""
        return CachePolicy(
            on_lag=self.on_lag, start=self.start, timeout_s=self.timeout, start_together=self.start_together or 0
        )

    def __repr__(self) -> str:
        usual = CrossTrainerCache(self.trainer_id)
        chosen = [
            f"{name}={getattr(self, name)!r}"
            for name in ("on_lag", "start", "start_together", "timeout")
            if getattr(self, name) != getattr(usual, name)
        ]
        return f"CrossTrainerCache({', '.join([repr(self.trainer_id), *chosen])})"
