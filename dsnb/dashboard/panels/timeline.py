"""The grants of splits on a time axis, with a row for each worker; `splits` draws them.

A snapshot lists only a job's newest grants, which may span a few seconds. So the grants of all snapshots in the shown
time span are merged, and later snapshots take precedence. Positions are fractions of a canvas whose left edge is a
fixed time that moves in steps: a finished grant is drawn once, and only the canvas moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

from dsnb.dashboard.feed import RateSample
from dsnb.monitor.formatting import natural_sort_key
from dsnb.monitor.snapshot import GrantStatus

MAX_BARS = 90
"""The maximum number of grants drawn; more would be slow in the browser and impossible to tell apart."""

STRAGGLER_RATIO = 2.0
"""A grant is a straggler if it takes this many times the median time per split."""

MAX_LANES = 3

_SAMPLE_STEP = 4
"""Read only every fourth snapshot: each lists the newest 120 grants, so consecutive ones overlap."""

_SHOWN_SPANS_S = (15.0, 30.0, 60.0, 120.0)

_MIN_FINISHED = 5
_OVERLAP_TOLERANCE_S = 0.02
_MIN_DELAY_S = 1.0


class GrantBar(msgspec.Struct, frozen=True, kw_only=True):
    """One grant, a run of splits, on the axis.

    Attributes:
        grant: The grant.
        begin: When work on it started, in seconds since the epoch: it was assigned and the previous grant was done.
        end: When it was done or lost; the current time while it is in hand.
        is_straggler: Whether it takes much longer than others of its size.
        lane: The lane in its worker's row: a worker may have tasks of two iterations at a time.
    """

    grant: GrantStatus
    begin: float
    end: float
    is_straggler: bool
    lane: int = 0

    @property
    def key(self) -> str:
        """Identifies the grant within its worker's row."""
        grant = self.grant
        return f"{grant.iteration}.{grant.provider}.{grant.repetition}.{grant.first}"


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's grants, the oldest first, and the number of lanes needed to draw them without overlap."""

    worker: str
    bars: tuple[GrantBar, ...]
    lanes: int


def shown_span(found: Sequence[WorkerRow], now: float, most: float) -> float:
    """The time span to show: what the grants fill, rounded up to fixed steps so that the scale rarely changes."""
    begun = min((run.begin for row in found for run in row.bars), default=now)
    return next((step for step in _SHOWN_SPANS_S if step >= now - begun and step < most), most)


def rows(history: Sequence[RateSample], job: str, since: float, now: float) -> tuple[WorkerRow, ...]:
    """A job's grants that overlap the time from `since` to `now` (dispatcher clock), by worker."""
    known = _merge_grants(history, job)
    start_times = _start_times(known, now)
    median_split_s = _median_split_s(known, start_times)
    # Leave out grants that are assigned but not started: they have no position in time, and MAX_BARS is limited.
    seen = (
        (grant, at)
        for grant, at in zip(known, start_times, strict=True)
        if (grant.ended_at or now) >= since and at < now
    )
    bars = [_grant_bar(grant, at, median_split_s, now) for grant, at in seen][-MAX_BARS:]
    workers = sorted({run.grant.worker for run in bars}, key=natural_sort_key)
    return tuple(_row(name, [run for run in bars if run.grant.worker == name]) for name in workers)


def _row(worker: str, bars: Iterable[GrantBar]) -> WorkerRow:
    """Put each grant in the first lane that is free when it begins; when all lanes are in use, share the last."""
    free: list[float] = []
    placed: list[GrantBar] = []
    for run in bars:
        lane = next((at for at, until in enumerate(free) if until <= run.begin + _OVERLAP_TOLERANCE_S), len(free))
        lane = min(lane, MAX_LANES - 1)
        free[lane : lane + 1] = [run.end]
        placed.append(replace(run, lane=lane))
    return WorkerRow(worker=worker, bars=tuple(placed), lanes=max(1, len(free)))


def _merge_grants(history: Sequence[RateSample], job: str) -> list[GrantStatus]:
    """Merge the snapshots' grants, each in its newest state, in the order of assignment.

    Drop a grant that was in hand in an older snapshot but is missing in the newest: it ended at an unknown time.
    """
    known: dict[tuple[str, int, int, int], GrantStatus] = {}
    for moment in history[::-_SAMPLE_STEP][::-1]:
        found = moment.snapshot.job(job)
        known = {key: grant for key, grant in known.items() if grant.ended_at}
        for grant in found.grants if found else ():
            known[grant.task_id, grant.provider, grant.repetition, grant.first] = grant
    return sorted(known.values(), key=lambda grant: grant.granted_at)


def _start_times(grants: Iterable[GrantStatus], now: float) -> list[float]:
    """When work on each grant started. A task requests grants ahead of time, and works on them one after the other."""
    free: dict[tuple[str, int], float] = {}
    start_times = []
    for grant in grants:
        task = (grant.task_id, grant.provider)
        start_times.append(min(max(grant.granted_at, free.get(task, 0.0)), grant.ended_at or now))
        free[task] = grant.ended_at or now
    return start_times


def _median_split_s(grants: Sequence[GrantStatus], start_times: Sequence[float]) -> float | None:
    """The median time per split of the grants that are done; None if there are too few."""
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
        # Workers report finished splits a few times a second, so a delay below a second means nothing.
        late = end - begin > max(STRAGGLER_RATIO * expected, expected + _MIN_DELAY_S)
    return GrantBar(grant=grant, begin=begin, end=max(end, begin), is_straggler=late)
