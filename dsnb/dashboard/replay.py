"""A run that was recorded, played on a page: each page has a place of its own in it, which moves on with the clock.

It looks to a page like a `Feed`, with the recorded time in place of the present.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict

from dsnb.dashboard.feed import RATE_SPAN_S, FeedHealth, RateSample
from dsnb.dataclass import dataclass
from dsnb.monitor.rates import Rates, rates
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot

MAX_DRAWN_SAMPLES = 300
"""Snapshots that are looked at for the figures: each must be unpacked."""

_CACHED_SAMPLES = 3 * MAX_DRAWN_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPosition:
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
        self._seek_time, self._seek_at = self._first, time.monotonic()
        self._playing = True
        self._samples: OrderedDict[float, RateSample] = OrderedDict()

    def now(self) -> float:
        """The recorded time that is shown now."""
        ran = time.monotonic() - self._seek_at if self._playing else 0.0
        return min(self._seek_time + ran, self._last)

    def position(self) -> ReplayPosition:
        """Where the page is."""
        return ReplayPosition(first=self._first, last=self._last, now=self.now(), playing=self._playing)

    def seek(self, to: float) -> None:
        """Go to a time of the run, or to the end of it that is nearer."""
        self._seek_time, self._seek_at = min(max(to, self._first), self._last), time.monotonic()

    def play(self, *, on: bool) -> None:
        """Move on with the clock, or stay."""
        self._seek_time, self._seek_at, self._playing = self.now(), time.monotonic(), on

    def latest(self) -> RateSample | None:
        """The newest moment that is not younger than the place of the page."""
        at = bisect_right(self._times, self.now())
        return self._sample(self._times[at - 1]) if at else None

    def since(self, at: float) -> list[RateSample]:
        """The moments from after a time to the place of the page, the oldest first; where they are many, some."""
        first, end = bisect_right(self._times, at), bisect_right(self._times, self.now())
        step = max(1, -(-(end - first) // MAX_DRAWN_SAMPLES))
        # Counted from the beginning of the run, or each tick would choose others; the newest always.
        return [self._sample(self._times[one]) for one in range(first, end) if one % step == 0 or one == end - 1]

    def health(self) -> FeedHealth:
        """A run that is over is never stale."""
        return FeedHealth(age_s=0.0)

    def _sample(self, at: float) -> RateSample:
        if at not in self._samples:
            snapshot, older = self._reader.at(at), self._rate_baseline(at)
            between = rates(older, snapshot) if older is not None else Rates()
            self._samples[at] = RateSample(arrived_at=at, wall_time=at, snapshot=snapshot, rates=between)
            if len(self._samples) > _CACHED_SAMPLES:
                self._samples.popitem(last=False)
        return self._samples[at]

    def _rate_baseline(self, at: float) -> Snapshot | None:
        """The oldest snapshot within the span of rates, else the one before; None before the second."""
        before = bisect_left(self._times, at) - 1
        if before < 0:
            return None
        then = self._times[min(before, bisect_left(self._times, at - RATE_SPAN_S))]
        known = self._samples.get(then)
        return known.snapshot if known is not None else self._reader.at(then)
