"""Which trainers joined and left each job, for the lines about them in the events of the status.

Theory of operation. Each epoch of a trainer's loop is a new client, so a trainer without a client may only be between
two epochs. It has left once it has had no client for `LEFT_AFTER_S`; before that, a new client is no event. A pure
core: the caller says who reads, and what time it is.
"""

from __future__ import annotations

from collections.abc import Collection

LEFT_AFTER_S = 2.0


class TrainerPresence:
    """The trainers of all jobs that have joined and not left. Not thread-safe."""

    def __init__(self) -> None:
        self._absent_since: dict[tuple[str, str], float | None] = {}
        """By job and trainer id; None for a trainer that has a client."""

    def joined(self, job: str, trainer_id: str) -> bool:
        """Note that a client of this trainer has joined; returns whether the trainer was not there before."""
        new = (job, trainer_id) not in self._absent_since
        self._absent_since[job, trainer_id] = None
        return new

    def update(self, jobs: Collection[str], readers: Collection[tuple[str, str]], now: float) -> list[tuple[str, str]]:
        """Note who reads now, and forget the trainers that have left; returns them as (job, trainer id).

        Args:
            jobs: The jobs that exist; the trainers of other jobs are forgotten, and are not returned.
            readers: The job and trainer id of each client.
            now: A monotonic time in seconds.
        """
        left = []
        for job, trainer_id in list(self._absent_since):
            since = self._absent_since[job, trainer_id]
            if job not in jobs:
                del self._absent_since[job, trainer_id]
            elif (job, trainer_id) in readers:
                self._absent_since[job, trainer_id] = None
            elif since is None:
                self._absent_since[job, trainer_id] = now
            elif now - since >= LEFT_AFTER_S:
                del self._absent_since[job, trainer_id]
                left.append((job, trainer_id))
        return left
