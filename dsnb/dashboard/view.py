"""What one page shows at one moment: the input of all panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from dsnb.dashboard.control_requests import Outcome, Request
from dsnb.dashboard.feed import FeedHealth, RateSample
from dsnb.dashboard.replay import ReplayPosition
from dsnb.dataclass import dataclass
from dsnb.monitor.formatting import format_rate
from dsnb.monitor.rates import JobRates, Rates
from dsnb.monitor.snapshot import JobStatus, Snapshot

TRAINER_COLOURS = 6
WORST_TASK = ""
"""The choice of no one task: each trainer at its worst place."""


RECENT_S = 10.0
_MAX_RECENT = 64

SPANS_S = {60: "1 min", 300: "5 min"}
"""How much time the figures show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the person at the page has picked; empty is "choose for me"."""

    job: str = ""
    task: str = WORST_TASK
    span_s: int = 60

    def with_pick(self, kind: str, value: str) -> Selection:
        """The choice after one more pick; what is no choice changes nothing."""
        if kind == "job":
            return replace(self, job=value, task=WORST_TASK)
        if kind == "task":
            return replace(self, task=value)
        spans = {str(span): span for span in SPANS_S}
        return replace(self, span_s=spans[value]) if kind == "span" and value in spans else self


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlState:
    """What may be done from this page, and what is being done.

    Attributes:
        allowed: Whether the page may ask for anything.
        read_only_reason: Why it may only look, in words.
        unconfirmed: The grave request that was pressed once.
        outcomes: What is under way, and what has just ended.
    """

    allowed: bool = False
    read_only_reason: str = ""
    unconfirmed: Request | None = None
    outcomes: tuple[Outcome, ...] = ()

    @property
    def pending(self) -> frozenset[Request]:
        """What is under way."""
        return frozenset(outcome.request for outcome in self.outcomes if outcome.state == "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a panel may look at.

    Attributes:
        sample: The newest snapshot with its rates; None before the first.
        recent: The last seconds of them, for what must not jump.
        history: All within the span that is shown.
        job: The job that is shown; None while there is none.
        control: What may be done from the page.
        replay_position: Where the page is in a recorded run; None where it shows the present.
    """

    health: FeedHealth
    selection: Selection = field(default_factory=Selection)
    sample: RateSample | None = None
    recent: tuple[RateSample, ...] = ()
    history: tuple[RateSample, ...] = ()
    job: JobStatus | None = None
    control: ControlState = field(default_factory=ControlState)
    replay_position: ReplayPosition | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot."""
        return self.sample.snapshot if self.sample else None

    @property
    def rates(self) -> Rates:
        """The newest rates; none of a service that is silent."""
        return self.sample.rates if self.sample and not self.health.stale else Rates()

    @property
    def measured(self) -> bool:
        """Whether there are rates: not of a service that is silent, nor of its first moment."""
        return self.rates.span_s > 0

    def format_rate(self, number: float) -> str:
        """A rate as it is read; a dash where none is known."""
        return format_rate(number) if self.measured else "–"

    @property
    def job_rates(self) -> JobRates:
        """The newest rates of the job that is shown."""
        return self.rates.job(self.job.name) if self.job else JobRates()


def view(
    history: Sequence[RateSample],
    health: FeedHealth,
    selection: Selection,
    control: ControlState | None = None,
    replay_position: ReplayPosition | None = None,
) -> View:
    """Put together what a page shows now, from the moments of the span that it shows."""
    sample = history[-1] if history else None
    return View(
        health=health,
        selection=selection,
        sample=sample,
        recent=tuple(
            past for past in history[-_MAX_RECENT:] if sample and past.arrived_at > sample.arrived_at - RECENT_S
        ),
        history=tuple(history),
        job=choose_job(sample.snapshot, selection.job) if sample else None,
        control=control or ControlState(),
        replay_position=replay_position,
    )


def choose_job(snapshot: Snapshot, picked: str) -> JobStatus | None:
    """The picked job while it lives, else the first that runs, else the newest."""
    job = snapshot.job(picked) if picked else None
    if job is not None or not snapshot.jobs:
        return job
    return next((job for job in snapshot.jobs if job.state == "running"), snapshot.jobs[-1])


def colour_class(job: JobStatus, trainer_id: str) -> str:
    """The class that gives a trainer its colour, the same in every panel."""
    ids = [trainer.trainer_id for trainer in job.trainers]
    return f"t{ids.index(trainer_id) % TRAINER_COLOURS}" if trainer_id in ids else "t0"
