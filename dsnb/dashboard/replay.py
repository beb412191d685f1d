"""A run that was recorded, played on a page: each page has a place of its own in it, which moves on with the clock.

It looks to a page like a `Feed`, with the recorded time in place of the present.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict

from dsnb.dashboard.feed import RATE_SPAN_S, Health, Moment
from dsnb.dataclass import dataclass
from dsnb.monitor.rates import Rates, rates
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot

MOST = 300
"""Snapshots that are looked at for the figures: each must be unpacked."""

_KEPT = 3 * MOST


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
        self._times = reader.times()
        self._first, self._last = (self._times[0], self._times[-1]) if self._times else (0.0, 0.0)
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
        at = bisect_right(self._times, self.clock())
        return self._moment(self._times[at - 1]) if at else None

    def since(self, at: float) -> list[Moment]:
        """The moments from after a time to the place of the page, the oldest first; where they are many, some."""
        first, end = bisect_right(self._times, at), bisect_right(self._times, self.clock())
        step = max(1, -(-(end - first) // MOST))
        # Counted from the beginning of the run, or each tick would choose others; the newest always.
        return [self._moment(self._times[one]) for one in range(first, end) if one % step == 0 or one == end - 1]

    def health(self) -> Health:
        """A run that is over is never stale."""
        return Health(age_s=0.0)

    def _moment(self, at: float) -> Moment:
        if at not in self._moments:
            snapshot, older = self._reader.at(at), self._older(at)
            between = rates(older, snapshot) if older is not None else Rates()
            self._moments[at] = Moment(at=at, wall=at, snapshot=snapshot, rates=between)
            if len(self._moments) > _KEPT:
                self._moments.popitem(last=False)
        return self._moments[at]

    def _older(self, at: float) -> Snapshot | None:
        """The oldest snapshot within the span of rates, else the one before; None before the second."""
        before = bisect_left(self._times, at) - 1
        if before < 0:
            return None
        then = self._times[min(before, bisect_left(self._times, at - RATE_SPAN_S))]
        known = self._moments.get(then)
        return known.snapshot if known is not None else self._reader.at(then)
