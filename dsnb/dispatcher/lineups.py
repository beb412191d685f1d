"""The tables of a coordinated read: who its consumers are, and which tasks give which rounds."""

from __future__ import annotations

from dataclasses import field

from dsnb.dataclass import dataclass
from dsnb.dispatcher import records as r
from dsnb.wire.lineup import Lineup


@dataclass(slots=True)
class Rounds:
    """One coordinated pass; `rounds` has its theory."""

    places: list[str]
    """The client that each consumer is; empty where there is none."""
    lineups: list[Lineup] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    """The clients that were there when the last lineup was made: they know where they are."""
    halts: int = 0
    """How often consumers were halted so far."""
    halted: bool = False
    dropped: int = 0
    """Rounds that were begun and that not all consumers could get."""

    def apply(self, record: r.RoundsHalted | r.RoundsGoOn | r.LineupMade) -> None:
        """Make a change."""
        self.halted = isinstance(record, r.RoundsHalted)
        self.halts += self.halted
        if isinstance(record, r.LineupMade):
            lineup = Lineup(first=record.first, halt=self.halts, tasks=record.tasks, turns=record.turns)
            self._line_up(lineup, record.needed_from)
            self.dropped += record.dropped

    def vacate(self, client: str) -> None:
        """Have a client be no consumer any more."""
        self.places = [place if place != client else "" for place in self.places]

    def _line_up(self, lineup: Lineup, needed_from: int) -> None:
        """Add a lineup, and forget those whose rounds all consumers have had."""
        kept = [known for known in self.lineups if known.first < lineup.first]
        while len(kept) > 1 and kept[1].first <= needed_from:
            del kept[0]
        if kept and lineup.first <= needed_from:
            kept.clear()
        self.lineups = [*kept, lineup]
        self.admitted = list(self.places)

    def validate(self) -> None:
        """Check what must hold between any two events."""
        firsts = [lineup.first for lineup in self.lineups]
        assert firsts == sorted(set(firsts)), "lineups are not in the order of their rounds"
        for lineup in self.lineups:
            assert lineup.tasks, "a lineup has no tasks"
            assert len(lineup.tasks) == len(set(lineup.tasks)) == len(lineup.turns), "a lineup is torn"
        assert not self.halted or all(self.places), "consumers are halted, and not all of them are there to agree"
        here = [client for client in self.places if client]
        assert len(here) == len(set(here)), "a client is two consumers"
