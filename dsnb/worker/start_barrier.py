"""The barrier before a task's first element, for trainers that start together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dsnb.errors import DeadlineExceededError
from dsnb.worker.cursors import TrainerCursor


class StartBarrier:
    """Tracks whether enough trainers have joined to start. Once complete, it stays complete.

    Attributes:
        complete: Whether elements may be sent.
    """

    def __init__(self) -> None:
        self.complete = False
        self._since: float | None = None

    def update(self, trainers: Collection[TrainerCursor], wanted: int) -> None:
        """Complete the barrier if at least `wanted` trainers have readers. Call it whenever a reader attaches."""
        self.complete |= sum(bool(trainer.readers) for trainer in trainers) >= wanted

    def timed_out(self, trainers: Collection[TrainerCursor], now: float) -> bool:
        """Whether the present trainers have waited for the shortest of their timeouts. True once, then it starts again.

        Args:
            trainers: All trainers of the task.
            now: Seconds of a monotonic clock.
        """
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
    """The error for the present trainers when the others did not join in time.

    Args:
        job: The job's name.
        here: The names of the present trainers.
    """
    return DeadlineExceededError(
        f"not all trainers that were to start together have come to job {job!r}; here are {', '.join(map(repr, here))}",
        did="nobody was given anything",
        hint="start the others within the timeout of CrossTrainerCache(..., start_together=n, timeout=seconds), "
        "or lower n",
    )
