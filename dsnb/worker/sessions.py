"""One client's reading of a task, on the worker's side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from dsnb.stopwatch import Stopwatch
from dsnb.transfer.protocol import LinkStats, ReadHandle, Sink
from dsnb.wire.messages import LinkReport, ReadRequest

if TYPE_CHECKING:
    from dsnb.worker.task import Task  # it makes the sessions


class ReaderSession(ReadHandle):
    """One client's reading of a task; see `transfer.protocol.ReadHandle`."""

    def __init__(self, task: Task, request: ReadRequest, sink: Sink, trainer: str, link_stats: LinkStats) -> None:
        self.client = request.client_id
        self.opening = request.opening
        self.sink = sink
        self.trainer_id = trainer
        self.end_sent = False
        self.wants_files = request.want_files
        self.files_sent = 0
        """How many of the task's opened files were reported to this reader."""
        self.unit_marks_sent = 0
        """How many of the marks of units were reported to this reader."""
        self._task = task
        self.link = link_stats
        self._sent = request.received
        self._flight = Stopwatch()
        """Runs while sent elements are not consumed yet."""

    @property
    def flight_ns(self) -> int:
        """Nanoseconds during which sent elements were not consumed yet."""
        return self._flight.ns

    def count_sent(self, count: int) -> None:
        """Count a frame slice of `count` elements as sent. Runs under the task's lock."""
        self._sent += count
        self.link.frame_slices += 1
        self._flight.start()

    def update_consumed(self, count: int) -> None:
        """Note how many of the sent elements were consumed in all. Runs under the task's lock."""
        if count >= self._sent:
            self._flight.stop()

    def link_report(self) -> LinkReport:
        """The transfer's statistics for this client."""
        link = asdict(self.link)
        del link["compression"]  # part of the task's report
        return LinkReport(
            client_id=self.client, trainer_id=self.trainer_id, sent=self._sent, at_end=self.end_sent, **link
        )

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0) -> None:
        self._task.credit(self, granted, consumed, max_bytes, received, taken)

    def recall(self) -> None:
        self._task.recall(self)

    def leave(self, consumed: int) -> None:
        self._task.leave(self.client, consumed, self)


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
