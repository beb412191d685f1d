"""`CrossTrainerCache`: how one trainer takes part in a preprocessing pass that it shares with others."""

from __future__ import annotations

from typing import Any, Literal

from dsnb.arguments import checked, integer, one_of, optional, seconds, short_repr, text
from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError
from dsnb.wire.cache_policy import CachePolicy


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

    Each worker keeps a sliding window of the elements it produced; every trainer of the job reads from it at its own
    pace. As in the tf.data service, the job needs a name and an endless dataset, and a trainer that falls out of the
    window is moved on unless it asks for something else.

    Args:
        trainer_id: Who reads. Readers of one id share one place, so among them each element comes once.
        on_lag: What happens when this trainer falls behind the window. "skip": it is moved on, and what it missed is
            counted. "wait": the window stays open, and the faster trainers wait for this one. "spill": what leaves the
            window is kept on the worker's disk (`WorkerConfig.spill_dir`), so it loses nothing and slows nobody.
            Trainers of one job may differ.
        start: Where a new trainer begins: at the "oldest" element that is there, or at the "newest", the next one to be
            produced.
        start_together: Nobody is given anything before so many trainers of the job are there.
        timeout: Seconds without reading after which nothing is kept for this trainer any longer, and nobody waits for
            it. When it reads again it goes on with what is there, and what it missed is counted.

    Raises:
        InvalidArgumentError: for a value that can never be right.

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
        """The same, as workers are told."""
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
