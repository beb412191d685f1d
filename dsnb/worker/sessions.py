"""One client's hold on a task, as the task keeps it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Protocol

from dsnb.wire.link import LinkReport
from dsnb.wire.transfer.protocol import OpenRequest, ReadHandle, Sink


class SessionOwner(Protocol):
    """The task, as far as its readings speak to it."""

    def credit(
        self, session: ReaderSession, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0
    ) -> None:
        """Take in what a client allows, and what it has had."""

    def recall(self, session: ReaderSession) -> None:
        """Take credit back that is not used."""

    def leave(self, client: str, consumed: int | None = None, session: ReaderSession | None = None) -> None:
        """Let a client go."""


class ReaderSession(ReadHandle):
    """One client's hold on a task; see `wire.transfer.handover.Reading`."""

    def __init__(self, task: SessionOwner, opening: OpenRequest, sink: Sink, trainer: str) -> None:
        self.client = opening.client_id
        self.sink = sink
        self.trainer_id = trainer
        self.end_sent = False
        self._task = task
        self.link = opening.link_stats
        self._sent = opening.received
        self._flight_ns, self._in_flight_since = 0, 0

    @property
    def flight_ns(self) -> int:
        """Time that something was sent and not consumed."""
        return self._flight_ns + (time.perf_counter_ns() - self._in_flight_since if self._in_flight_since else 0)

    def count_sent(self, count: int) -> None:
        """Count a piece that is under way from now on; under the task's lock, as the next."""
        self._sent += count
        self.link.frame_slices += 1
        self._in_flight_since = self._in_flight_since or time.perf_counter_ns()

    def update_consumed(self, count: int) -> None:
        """Learn how much its user has had of all that was sent."""
        if self._in_flight_since and count >= self._sent:
            self._flight_ns, self._in_flight_since = self.flight_ns, 0

    def link_report(self) -> LinkReport:
        """How the elements come to the client."""
        link = asdict(self.link)
        del link["compression"]  # its task tells it
        return LinkReport(client_id=self.client, trainer_id=self.trainer_id, sent=self._sent, **link)

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0) -> None:
        self._task.credit(self, granted, consumed, max_bytes, received, taken)

    def recall(self) -> None:
        self._task.recall(self)

    def leave(self, consumed: int) -> None:
        self._task.leave(self.client, consumed, self)
