"""What one page shows at one moment: the input of all panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from dsnb.dashboard.controls import Outcome, Request
from dsnb.dashboard.feed import Health, Moment
from dsnb.dashboard.replay import Position
from dsnb.dataclass import dataclass
from dsnb.monitor.rates import JobRates, Rates
from dsnb.monitor.snapshot import JobStatus, Snapshot
from dsnb.monitor.words import rate

TRAINER_COLOURS = 6
WORST = ""
"""The choice of no one task: each trainer at its worst place."""


RECENT_S = 10.0
_MOST_RECENT = 64

SPANS_S = {60: "1 min", 300: "5 min"}
"""How much time the figures show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the person at the page has picked; empty is "choose for me"."""

    job: str = ""
    task: str = WORST
    span_s: int = 60

    def pick(self, what: str, value: str) -> Choice:
        """The choice after one more pick; what is no choice changes nothing."""
        if what == "job":
            return replace(self, job=value, task=WORST)
        if what == "task":
            return replace(self, task=value)
        spans = {str(span): span for span in SPANS_S}
        return replace(self, span_s=spans[value]) if what == "span" and value in spans else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What may be done from this page, and what is being done.

    Attributes:
        allowed: Whether the page may ask for anything.
        why_not: Why it may only look, in words.
        armed: The grave request that was pressed once.
        outcomes: What is under way, and what has just ended.
    """

    allowed: bool = False
    why_not: str = ""
    armed: Request | None = None
    outcomes: tuple[Outcome, ...] = ()

    @property
    def pending(self) -> frozenset[Request]:
        """What is under way."""
        return frozenset(outcome.request for outcome in self.outcomes if outcome.state == "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a panel may look at.

    Attributes:
        moment: The newest snapshot with its rates; None before the first.
        recent: The last seconds of them, for what must not jump.
        history: All within the span that is shown.
        job: The job that is shown; None while there is none.
        control: What may be done from the page.
        replayed: Where the page is in a recorded run; None where it shows the present.
    """

    health: Health
    choice: Choice = field(default_factory=Choice)
    moment: Moment | None = None
    recent: tuple[Moment, ...] = ()
    history: tuple[Moment, ...] = ()
    job: JobStatus | None = None
    control: Control = field(default_factory=Control)
    replayed: Position | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot."""
        return self.moment.snapshot if self.moment else None

    @property
    def rates(self) -> Rates:
        """The newest rates; none of a service that is silent."""
        return self.moment.rates if self.moment and not self.health.stale else Rates()

    @property
    def measured(self) -> bool:
        """Whether there are rates: not of a service that is silent, nor of its first moment."""
        return self.rates.span_s > 0

    def per_s(self, number: float) -> str:
        """A rate as it is read; a dash where none is known."""
        return rate(number) if self.measured else "–"

    @property
    def job_rates(self) -> JobRates:
        """The newest rates of the job that is shown."""
        return self.rates.job(self.job.name) if self.job else JobRates()


def view(
    history: Sequence[Moment],
    health: Health,
    choice: Choice,
    control: Control | None = None,
    replayed: Position | None = None,
) -> View:
    """Put together what a page shows now, from the moments of the span that it shows."""
    moment = history[-1] if history else None
    return View(
        health=health,
        choice=choice,
        moment=moment,
        recent=tuple(past for past in history[-_MOST_RECENT:] if moment and past.at > moment.at - RECENT_S),
        history=tuple(history),
        job=choose_job(moment.snapshot, choice.job) if moment else None,
        control=control or Control(),
        replayed=replayed,
    )


def choose_job(snapshot: Snapshot, picked: str) -> JobStatus | None:
    """The picked job while it lives, else the first that runs, else the newest."""
    job = snapshot.job(picked) if picked else None
    if job is not None or not snapshot.jobs:
        return job
    return next((job for job in snapshot.jobs if job.state == "running"), snapshot.jobs[-1])


def colour(job: JobStatus, trainer_id: str) -> str:
    """The class that gives a trainer its colour, the same in every panel."""
    ids = [trainer.trainer_id for trainer in job.trainers]
    return f"t{ids.index(trainer_id) % TRAINER_COLOURS}" if trainer_id in ids else "t0"
