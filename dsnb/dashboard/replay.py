"""Playback of a recorded run: each page has its own position in the run, which advances with the clock.

For a page it is a `SnapshotSource` like `Feed`, with recorded time in place of the present.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict

import msgspec

from dsnb.dashboard.feed import RATE_SPAN_S, FeedHealth, RateSample
from dsnb.monitor.rates import Rates, rates
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import VERDICT_SPAN_S, is_read

MAX_DRAWN_SAMPLES = 300
"""The maximum number of snapshots read for the figures; each must be decompressed."""

_CACHED_SAMPLES = 3 * MAX_DRAWN_SAMPLES


class ReplayPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A page's position in a run; all times are in seconds since the epoch."""

    first: float
    last: float
    now: float
    playing: bool


class _LastRead(msgspec.Struct, frozen=True, kw_only=True):
    """The index of the last snapshot in which a job was read, of those up to the index `searched_to`."""

    index: int
    searched_to: int


class Replay:
    """One page's playback of a recorded run.

    Args:
        reader: The run, shared by all pages; the caller closes it.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._times = reader.times()
        self._first, self._last = (self._times[0], self._times[-1]) if self._times else (0.0, 0.0)
        self._seek_time, self._seek_at = self._first, time.monotonic()
        self._playing = True
        self._samples: OrderedDict[float, RateSample] = OrderedDict()
        self._last_reads: dict[str | None, _LastRead] = {}

    def now(self) -> float:
        """The recorded time that is shown now."""
        ran = time.monotonic() - self._seek_at if self._playing else 0.0
        return min(self._seek_time + ran, self._last)

    def position(self) -> ReplayPosition:
        """The page's current position and the limits of the run."""
        return ReplayPosition(first=self._first, last=self._last, now=self.now(), playing=self._playing)

    def seek(self, to: float) -> None:
        """Move to a time, limited to the span of the run."""
        self._seek_time, self._seek_at = min(max(to, self._first), self._last), time.monotonic()

    def play(self, *, on: bool) -> None:
        """Start or pause the playback."""
        self._seek_time, self._seek_at, self._playing = self.now(), time.monotonic(), on

    def latest(self) -> RateSample | None:
        """The newest sample at or before the current position; None if there is none."""
        at = bisect_right(self._times, self.now())
        return self._sample(self._times[at - 1]) if at else None

    def since(self, at: float) -> list[RateSample]:
        """The samples between a time and the current position, the oldest first; thinned out if there are many."""
        first, end = bisect_right(self._times, at), bisect_right(self._times, self.now())
        step = max(1, -(-(end - first) // MAX_DRAWN_SAMPLES))
        # Select by index from the beginning of the run, so that each tick selects the same ones; always the newest.
        return [self._sample(self._times[one]) for one in range(first, end) if one % step == 0 or one == end - 1]

    def last_read(self, job: str | None) -> list[Snapshot]:
        at = bisect_right(self._times, self.now()) - 1
        last = self._index_of_last_read(job, at)
        if last < 0:
            return [self._sample(self._times[at]).snapshot] if at >= 0 else []
        first = bisect_left(self._times, self._times[last] - VERDICT_SPAN_S)
        span = [*range(first, last + 1), at] if at > last else range(first, last + 1)
        return [self._sample(self._times[one]).snapshot for one in span]

    def _index_of_last_read(self, job: str | None, at: int) -> int:
        """The index of the last snapshot up to `at` in which a job was read; -1 if there is none.

        What was searched once is remembered, because a page asks several times a second.
        """
        known = self._last_reads.get(job)
        if known is None or at < known.index:
            known = _LastRead(index=-1, searched_to=-1)
        newer = range(at, known.searched_to, -1)
        index = next((one for one in newer if is_read(self._reader.at(self._times[one]), job)), known.index)
        self._last_reads[job] = _LastRead(index=index, searched_to=max(at, known.searched_to))
        return index

    def health(self) -> FeedHealth:
        """A recorded run is never stale."""
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
        """The oldest snapshot within the rate span, else the previous one; None for the first snapshot."""
        before = bisect_left(self._times, at) - 1
        if before < 0:
            return None
        then = self._times[min(before, bisect_left(self._times, at - RATE_SPAN_S))]
        known = self._samples.get(then)
        return known.snapshot if known is not None else self._reader.at(then)
