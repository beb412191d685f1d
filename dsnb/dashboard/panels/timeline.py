"""The runs of splits on an axis of time, a row for each worker: what `splits` draws.

A status tells of the newest grants of a job; where they come fast those are a few seconds' worth, so the grants of all
moments of the span that is shown are put together, the later word counting. Positions are parts of a canvas whose left
edge is a fixed moment that steps on now and then: so a finished run is drawn once, and only the canvas moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from dsnb.dashboard.feed import Moment
from dsnb.dataclass import dataclass
from dsnb.monitor.snapshot import GrantStatus
from dsnb.monitor.words import by_number

MOST = 90
"""Runs that are drawn; more would cost the browser dearly and could not be told apart."""

STRAGGLES = 2.0
"""A run that takes this many times the median of its fellows for each split is a straggler."""

MOST_LANES = 3

_EVERY = 4
"""Of so many moments one is looked at: each tells of the newest 120 grants."""

_SPANS = (15.0, 30.0, 60.0, 120.0)

_FELLOWS = 5
_TOUCH_S = 0.02
_LEAST_LATE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of splits on the axis.

    Attributes:
        begin: When it was taken up, in seconds since the epoch: given, and the run before it done.
        end: When it was done or lost; the present while it is in hand.
        straggles: Whether it takes much longer than others of its size.
        lane: Which of its worker's lanes it is drawn in: a worker may have tasks of two passes at a time.
    """

    grant: GrantStatus
    begin: float
    end: float
    straggles: bool
    lane: int = 0

    @property
    def key(self) -> str:
        """What tells it from all others of its worker's row."""
        grant = self.grant
        return f"{grant.iteration}.{grant.source}.{grant.repetition}.{grant.first}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One worker's runs, the oldest first, and the lanes that they need so as not to hide one another."""

    worker: str
    runs: tuple[Run, ...]
    lanes: int


def span_of(found: Sequence[Row], now: float, most: float) -> float:
    """How much time to show: no more than the runs fill, in steps, or every run would change the scale."""
    begun = min((run.begin for row in found for run in row.runs), default=now)
    return next((step for step in _SPANS if step >= now - begun and step < most), most)


def rows(history: Sequence[Moment], job: str, since: float, now: float) -> tuple[Row, ...]:
    """The runs of a job that reach into the time from `since` to `now` (by the dispatcher's clock), by worker."""
    known = _together(history, job)
    begun = _begun(known, now)
    usual = _usual(known, begun)
    # What is in hand and waits for its turn has no place in time yet, and must not take one of the last places here.
    seen = ((grant, at) for grant, at in zip(known, begun, strict=True) if (grant.done or now) >= since and at < now)
    runs = [_run(grant, at, usual, now) for grant, at in seen][-MOST:]
    workers = sorted({run.grant.worker for run in runs}, key=by_number)
    return tuple(_row(name, [run for run in runs if run.grant.worker == name]) for name in workers)


def _row(worker: str, runs: Iterable[Run]) -> Row:
    """Each run in the first lane that is free when it begins; beyond the last lane they share it."""
    free: list[float] = []
    placed: list[Run] = []
    for run in runs:
        lane = next((at for at, until in enumerate(free) if until <= run.begin + _TOUCH_S), len(free))
        lane = min(lane, MOST_LANES - 1)
        free[lane : lane + 1] = [run.end]
        placed.append(replace(run, lane=lane))
    return Row(worker=worker, runs=tuple(placed), lanes=max(1, len(free)))


def _together(history: Sequence[Moment], job: str) -> list[GrantStatus]:
    """Each grant that any moment told of, as the last one told it, in the order in which they were given.

    What an older moment told to be in hand, and the newest does not tell of, has ended since, nobody knows when.
    """
    known: dict[tuple[str, int, int, int], GrantStatus] = {}
    for moment in history[::-_EVERY][::-1]:
        found = moment.snapshot.job(job)
        known = {key: grant for key, grant in known.items() if grant.done}
        for grant in found.grants if found else ():
            known[grant.task_id, grant.source, grant.repetition, grant.first] = grant
    return sorted(known.values(), key=lambda grant: grant.given)


def _begun(grants: Iterable[GrantStatus], now: float) -> list[float]:
    """When each was taken up: a task asks for its next run early, and is done with its runs one after the other."""
    free: dict[tuple[str, int], float] = {}
    begun = []
    for grant in grants:
        task = (grant.task_id, grant.source)
        begun.append(min(max(grant.given, free.get(task, 0.0)), grant.done or now))
        free[task] = grant.done or now
    return begun


def _usual(grants: Sequence[GrantStatus], begun: Sequence[float]) -> float | None:
    """What one split takes, as the median of those that are done; None while too few are."""
    took = [
        (grant.done - at) / (grant.end - grant.first)
        for grant, at in zip(grants, begun, strict=True)
        if grant.state == "done"
    ]
    return median(took) if len(took) >= _FELLOWS else None


def _run(grant: GrantStatus, begin: float, usual: float | None, now: float) -> Run:
    end = grant.done or now
    late = False
    if usual is not None and grant.state in {"done", "in hand"}:
        expected = usual * (grant.end - grant.first)
        # Workers tell a few times a second what they are done with: less than a second's delay says nothing.
        late = end - begin > max(STRAGGLES * expected, expected + _LEAST_LATE_S)
    return Run(grant=grant, begin=begin, end=max(end, begin), straggles=late)
