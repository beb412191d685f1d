"""One client's hold on a task, as the task keeps it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Protocol

from dsnb.wire.link import LinkReport
from dsnb.wire.transfer.handover import Opening, Reading, Sink


class Keeper(Protocol):
    """The task, as far as its readings speak to it."""

    def credit(
        self, reading: TaskReading, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0
    ) -> None:
        """Take in what a client allows, and what it has had."""

    def recall(self, reading: TaskReading) -> None:
        """Take credit back that is not used."""

    def leave(self, client: str, consumed: int | None = None, reading: TaskReading | None = None) -> None:
        """Let a client go."""


class TaskReading(Reading):
    """One client's hold on a task; see `wire.transfer.handover.Reading`."""

    def __init__(self, task: Keeper, opening: Opening, sink: Sink, trainer: str) -> None:
        self.client = opening.client_id
        self.sink = sink
        self.trainer = trainer
        self.ended = False
        self._task = task
        self.link = opening.link
        self._sent = opening.received
        self._flight_ns, self._flying_since = 0, 0

    @property
    def flight_ns(self) -> int:
        """Time that something was sent and not consumed."""
        return self._flight_ns + (time.perf_counter_ns() - self._flying_since if self._flying_since else 0)

    def sent(self, count: int) -> None:
        """Count a piece that is under way from now on; under the task's lock, as the next."""
        self._sent += count
        self.link.pieces += 1
        self._flying_since = self._flying_since or time.perf_counter_ns()

    def consumed(self, count: int) -> None:
        """Learn how much its user has had of all that was sent."""
        if self._flying_since and count >= self._sent:
            self._flight_ns, self._flying_since = self.flight_ns, 0

    def link_report(self) -> LinkReport:
        """How the elements come to the client."""
        link = asdict(self.link)
        del link["compression"]  # its task tells it
        return LinkReport(client=self.client, trainer_id=self.trainer, sent=self._sent, **link)

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0) -> None:
        self._task.credit(self, granted, consumed, max_bytes, received, taken)

    def recall(self) -> None:
        self._task.recall(self)

    def leave(self, consumed: int) -> None:
        self._task.leave(self.client, consumed, self)
