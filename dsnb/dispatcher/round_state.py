"""The tables of a coordinated read: the client of each consumer, and the schedules of rounds."""

from __future__ import annotations

import msgspec

from dsnb.dispatcher import records as r
from dsnb.wire.schedule import RoundSchedule


class Rounds(msgspec.Struct, forbid_unknown_fields=True):
    """The state of one coordinated iteration; the module `rounds` has the theory of operation."""

    client_ids: list[str]
    """The client id of each consumer; empty if the consumer has no client."""
    schedules: list[RoundSchedule] = msgspec.field(default_factory=list)
    scheduled_client_ids: list[str] = msgspec.field(default_factory=list)
    """The client ids when the last schedule was made; a client that is not among them needs a new schedule."""
    halt_count: int = 0
    """How many times the consumers have been halted."""
    halted: bool = False
    dropped: int = 0
    """How many rounds were begun and could not reach all consumers."""

    def apply(self, record: r.RoundsHalted | r.RoundsResumed | r.ScheduleChanged) -> None:
        """Apply one record to the halts and schedules."""
        self.halted = isinstance(record, r.RoundsHalted)
        self.halt_count += self.halted
        if isinstance(record, r.ScheduleChanged):
            schedule = RoundSchedule(
                first_round=record.first_round, halt=self.halt_count, tasks=record.tasks, task_rounds=record.task_rounds
            )
            self._add_schedule(schedule, record.needed_from)
            self.dropped += record.dropped

    def remove_client(self, client_id: str) -> None:
        """Remove a client from the consumers."""
        self.client_ids = [known if known != client_id else "" for known in self.client_ids]

    def _add_schedule(self, schedule: RoundSchedule, needed_from: int) -> None:
        """Add a schedule, and drop those whose rounds all consumers have taken."""
        kept = [known for known in self.schedules if known.first_round < schedule.first_round]
        while len(kept) > 1 and kept[1].first_round <= needed_from:
            del kept[0]
        if kept and schedule.first_round <= needed_from:
            kept.clear()
        self.schedules = [*kept, schedule]
        self.scheduled_client_ids = list(self.client_ids)

    def validate(self) -> None:
        """Check the invariants that hold between any two events."""
        firsts = [lineup.first_round for lineup in self.schedules]
        assert firsts == sorted(set(firsts)), "lineups are not in the order of their rounds"
        for schedule in self.schedules:
            assert schedule.tasks, "a lineup has no tasks"
            assert len(schedule.tasks) == len(set(schedule.tasks)) == len(schedule.task_rounds), "a lineup is torn"
        assert not self.halted or all(self.client_ids), "consumers are halted, and not all of them are there to agree"
        here = [client for client in self.client_ids if client]
        assert len(here) == len(set(here)), "a client is two consumers"
