"""The barrier before a task's first element: who wants to start together waits until all are there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dsnb.errors import DeadlineExceededError
from dsnb.worker.places import TrainerCursor


class StartBarrier:
    """Whether all are there who wanted to start together; once they were, it stays so.

    Attributes:
        complete: Whether elements may be given out.
    """

    def __init__(self) -> None:
        self.complete = False
        self._since: float | None = None

    def update(self, trainers: Collection[TrainerCursor], wanted: int) -> None:
        """Look who is there, when one comes who waits for so many."""
        self.complete |= sum(bool(trainer.readers) for trainer in trainers) >= wanted

    def timed_out(self, trainers: Collection[TrainerCursor], now: float) -> bool:
        """Whether those who are there have waited for as long as they wanted to; the wait begins anew then."""
        timeouts = [t.cache_policy.timeout_s for t in trainers if t.readers and t.cache_policy.timeout_s]
        if self.complete or not timeouts:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= min(timeouts):
            self._since = None
            return True
        return False


def start_barrier_timeout(job: str, here: Sequence[str]) -> DeadlineExceededError:
    """What those who came are told when the others did not come in time."""
    return DeadlineExceededError(
        f"not all trainers that were to start together have come to job {job!r}; here are {', '.join(map(repr, here))}",
        did="nobody was given anything",
        hint="start the others within the timeout of CrossTrainerCache(..., start_together=n, timeout=seconds), "
        "or lower n",
    )
