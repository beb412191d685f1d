"""What a task still tells of readings that are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dsnb.worker.task_reading import TaskReading


class Departed:
    """Adds up the readings that are over, and says what comes of them and those that go on."""

    def __init__(self) -> None:
        self._flight_ns: Counter[str] = Counter()
        self._compression = ""

    def add(self, reading: TaskReading) -> None:
        """Count one that is over."""
        self._flight_ns[reading.trainer] += reading.flight_ns
        self._compression = reading.link.compression or self._compression

    def flight_ns(self, trainer: str, present: Iterable[TaskReading]) -> int:
        """The time that something had been sent to a trainer that it had not consumed."""
        return self._flight_ns[trainer] + sum(r.flight_ns for r in present if r.trainer == trainer)

    def compression(self, present: Iterable[TaskReading]) -> str:
        """What was decided for the readers, or for the last one that left."""
        decisions = {reading.link.compression: None for reading in present if reading.link.compression}
        return "; ".join(decisions) or self._compression
