"""Totals of closed reader sessions, for a task's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dsnb.worker.sessions import ReaderSession


class ClosedReaderTotals:
    """Keeps the figures of closed sessions, and combines them with those of open ones."""

    def __init__(self) -> None:
        self._flight_ns: Counter[str] = Counter()
        self._compression = ""

    def add(self, session: ReaderSession) -> None:
        """Add the figures of a closed session."""
        self._flight_ns[session.trainer_id] += session.flight_ns
        self._compression = session.link.compression or self._compression

    def flight_ns(self, trainer: str, present: Iterable[ReaderSession]) -> int:
        """Nanoseconds during which elements that were sent to a trainer's readers were not consumed yet.

        Args:
            trainer: The trainer's id.
            present: The open sessions of all trainers.
        """
        return self._flight_ns[trainer] + sum(r.flight_ns for r in present if r.trainer_id == trainer)

    def compression(self, present: Iterable[ReaderSession]) -> str:
        """The compression of the open sessions, or of the last closed one if none of them has any.

        Args:
            present: The open sessions.
        """
        decisions = {reading.link.compression: None for reading in present if reading.link.compression}
        return "; ".join(decisions) or self._compression
