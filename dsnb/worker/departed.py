"""What a task still tells of readings that are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dsnb.worker.sessions import ReaderSession


class ClosedReaderTotals:
    """Adds up the readings that are over, and says what comes of them and those that go on."""

    def __init__(self) -> None:
        self._flight_ns: Counter[str] = Counter()
        self._compression = ""

    def add(self, session: ReaderSession) -> None:
        """Count one that is over."""
        self._flight_ns[session.trainer_id] += session.flight_ns
        self._compression = session.link.compression or self._compression

    def flight_ns(self, trainer: str, present: Iterable[ReaderSession]) -> int:
        """The time that something had been sent to a trainer that it had not consumed."""
        return self._flight_ns[trainer] + sum(r.flight_ns for r in present if r.trainer_id == trainer)

    def compression(self, present: Iterable[ReaderSession]) -> str:
        """What was decided for the readers, or for the last one that left."""
        decisions = {reading.link.compression: None for reading in present if reading.link.compression}
        return "; ".join(decisions) or self._compression
