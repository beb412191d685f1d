"""A run that was recorded, played on a page: each page has a place of its own in it, which moves on with the clock.

It looks to a page like a `Feed`, with the recorded time in place of the present.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from dsnb.dashboard.feed import RATE_SPAN_S, Health, Moment
from dsnb.monitor.rates import Rates, rates, same_run
from dsnb.monitor.run_file import RunReader

LONGEST_S = 60.0
"""How much of the past is read for the figures: each snapshot must be unpacked."""

_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a page is in a run; all times in seconds since the epoch."""

    first: float
    last: float
    now: float
    playing: bool


class Replay:
    """One page's place in a recorded run.

    Args:
        reader: The run; shared by all pages, and closed by whoever opened it.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        times = reader.times()
        self._first, self._last = (times[0], times[-1]) if times else (0.0, 0.0)
        self._place, self._since = self._first, time.monotonic()
        self._playing = True
        self._moments: OrderedDict[float, Moment] = OrderedDict()

    def clock(self) -> float:
        """The recorded time that is shown now."""
        ran = time.monotonic() - self._since if self._playing else 0.0
        return min(self._place + ran, self._last)

    def position(self) -> Position:
        """Where the page is."""
        return Position(first=self._first, last=self._last, now=self.clock(), playing=self._playing)

    def seek(self, to: float) -> None:
        """Go to a time of the run, or to the end of it that is nearer."""
        self._place, self._since = min(max(to, self._first), self._last), time.monotonic()

    def play(self, *, on: bool) -> None:
        """Move on with the clock, or stay."""
        self._place, self._since, self._playing = self.clock(), time.monotonic(), on

    def latest(self) -> Moment | None:
        """The newest moment that is not younger than the place of the page."""
        found = self.since(self.clock() - LONGEST_S)
        return found[-1] if found else None

    def since(self, at: float) -> list[Moment]:
        """The moments from after a time to the place of the page, the oldest first."""
        now = self.clock()
        times = [one for one in self._reader.times() if max(at, now - LONGEST_S) < one <= now]
        return [self._moment(one) for one in times]

    def health(self) -> Health:
        """A run that is over is never stale."""
        return Health(age_s=0.0)

    def _moment(self, at: float) -> Moment:
        if at not in self._moments:
            snapshot = self._reader.at(at)
            known = (m for m in self._moments.values() if at - RATE_SPAN_S - 1 <= m.at < at)
            older = next((m.snapshot for m in known if same_run(m.snapshot, snapshot)), None)
            between = rates(older, snapshot) if older is not None else Rates()
            self._moments[at] = Moment(at=at, wall=at, snapshot=snapshot, rates=between)
            if len(self._moments) > _KEPT:
                self._moments.popitem(last=False)
        return self._moments[at]
