"""The runs of splits on an axis of time, a row for each worker: what `splits` draws.

A status tells of the newest grants of a job; where they come fast those are a few seconds' worth, so the grants of all
moments of the span that is shown are put together, the later word counting. Positions are parts of a canvas whose left
edge is a fixed moment that steps on now and then: so a finished run is drawn once, and only the canvas moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from dsnb.dashboard.feed import RateSample
from dsnb.dataclass import dataclass
from dsnb.monitor.formatting import natural_sort_key
from dsnb.monitor.snapshot import GrantStatus

MAX_BARS = 90
"""Runs that are drawn; more would cost the browser dearly and could not be told apart."""

STRAGGLER_RATIO = 2.0
"""A run that takes this many times the median of its fellows for each split is a straggler."""

MAX_LANES = 3

_SAMPLE_STEP = 4
"""Of so many moments one is looked at: each tells of the newest 120 grants."""

_SHOWN_SPANS_S = (15.0, 30.0, 60.0, 120.0)

_MIN_FINISHED = 5
_OVERLAP_TOLERANCE_S = 0.02
_MIN_DELAY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantBar:
    """One run of splits on the axis.

    Attributes:
        begin: When it was taken up, in seconds since the epoch: given, and the run before it done.
        end: When it was done or lost; the present while it is in hand.
        is_straggler: Whether it takes much longer than others of its size.
        lane: Which of its worker's lanes it is drawn in: a worker may have tasks of two passes at a time.
    """

    grant: GrantStatus
    begin: float
    end: float
    is_straggler: bool
    lane: int = 0

    @property
    def key(self) -> str:
        """What tells it from all others of its worker's row."""
        grant = self.grant
        return f"{grant.iteration}.{grant.provider}.{grant.repetition}.{grant.first}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker's runs, the oldest first, and the lanes that they need so as not to hide one another."""

    worker: str
    bars: tuple[GrantBar, ...]
    lanes: int


def shown_span(found: Sequence[WorkerRow], now: float, most: float) -> float:
    """How much time to show: no more than the runs fill, in steps, or every run would change the scale."""
    begun = min((run.begin for row in found for run in row.bars), default=now)
    return next((step for step in _SHOWN_SPANS_S if step >= now - begun and step < most), most)


def rows(history: Sequence[RateSample], job: str, since: float, now: float) -> tuple[WorkerRow, ...]:
    """The runs of a job that reach into the time from `since` to `now` (by the dispatcher's clock), by worker."""
    known = _merge_grants(history, job)
    start_times = _start_times(known, now)
    median_split_s = _median_split_s(known, start_times)
    # What is in hand and waits for its turn has no place in time yet, and must not take one of the last places here.
    seen = (
        (grant, at)
        for grant, at in zip(known, start_times, strict=True)
        if (grant.ended_at or now) >= since and at < now
    )
    bars = [_grant_bar(grant, at, median_split_s, now) for grant, at in seen][-MAX_BARS:]
    workers = sorted({run.grant.worker for run in bars}, key=natural_sort_key)
    return tuple(_row(name, [run for run in bars if run.grant.worker == name]) for name in workers)


def _row(worker: str, bars: Iterable[GrantBar]) -> WorkerRow:
    """Each run in the first lane that is free when it begins; beyond the last lane they share it."""
    free: list[float] = []
    placed: list[GrantBar] = []
    for run in bars:
        lane = next((at for at, until in enumerate(free) if until <= run.begin + _OVERLAP_TOLERANCE_S), len(free))
        lane = min(lane, MAX_LANES - 1)
        free[lane : lane + 1] = [run.end]
        placed.append(replace(run, lane=lane))
    return WorkerRow(worker=worker, bars=tuple(placed), lanes=max(1, len(free)))


def _merge_grants(history: Sequence[RateSample], job: str) -> list[GrantStatus]:
    """Each grant that any moment told of, as the last one told it, in the order in which they were given.

    What an older moment told to be in hand, and the newest does not tell of, has ended since, nobody knows when.
    """
    known: dict[tuple[str, int, int, int], GrantStatus] = {}
    for moment in history[::-_SAMPLE_STEP][::-1]:
        found = moment.snapshot.job(job)
        known = {key: grant for key, grant in known.items() if grant.ended_at}
        for grant in found.grants if found else ():
            known[grant.task_id, grant.provider, grant.repetition, grant.first] = grant
    return sorted(known.values(), key=lambda grant: grant.granted_at)


def _start_times(grants: Iterable[GrantStatus], now: float) -> list[float]:
    """When each was taken up: a task asks for its next run early, and is done with its runs one after the other."""
    free: dict[tuple[str, int], float] = {}
    start_times = []
    for grant in grants:
        task = (grant.task_id, grant.provider)
        start_times.append(min(max(grant.granted_at, free.get(task, 0.0)), grant.ended_at or now))
        free[task] = grant.ended_at or now
    return start_times


def _median_split_s(grants: Sequence[GrantStatus], start_times: Sequence[float]) -> float | None:
    """What one split takes, as the median of those that are done; None while too few are."""
    took = [
        (grant.ended_at - at) / (grant.end - grant.first)
        for grant, at in zip(grants, start_times, strict=True)
        if grant.state == "done"
    ]
    return median(took) if len(took) >= _MIN_FINISHED else None


def _grant_bar(grant: GrantStatus, begin: float, median_split_s: float | None, now: float) -> GrantBar:
    end = grant.ended_at or now
    late = False
    if median_split_s is not None and grant.state in {"done", "in hand"}:
        expected = median_split_s * (grant.end - grant.first)
        # Workers tell a few times a second what they are done with: less than a second's delay says nothing.
        late = end - begin > max(STRAGGLER_RATIO * expected, expected + _MIN_DELAY_S)
    return GrantBar(grant=grant, begin=begin, end=max(end, begin), is_straggler=late)
