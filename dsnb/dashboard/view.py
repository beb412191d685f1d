"""What one page shows at one moment: the input of all panels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dsnb.dashboard.feed import Health, Moment
from dsnb.dashboard.rates import JobRates, Rates
from dsnb.monitor.snapshot import JobStatus, Snapshot

TRAINER_COLOURS = 6
WORST = ""
"""The choice of no one task: each trainer at its worst place."""


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
class View:
    """What a panel may look at.

    Attributes:
        moment: The newest snapshot with its rates; None before the first.
        recent: The last seconds of them, for what must not jump.
        job: The job that is shown; None while there is none.
    """

    health: Health
    choice: Choice = field(default_factory=Choice)
    moment: Moment | None = None
    recent: tuple[Moment, ...] = ()
    job: JobStatus | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot."""
        return self.moment.snapshot if self.moment else None

    @property
    def rates(self) -> Rates:
        """The newest rates; none of a service that is silent."""
        return self.moment.rates if self.moment and not self.health.stale else Rates()

    @property
    def job_rates(self) -> JobRates:
        """The newest rates of the job that is shown."""
        return self.rates.job(self.job.name) if self.job else JobRates()


def view(moment: Moment | None, recent: tuple[Moment, ...], health: Health, choice: Choice) -> View:
    """Put together what a page shows now."""
    job = choose_job(moment.snapshot, choice.job) if moment else None
    return View(health=health, choice=choice, moment=moment, recent=recent, job=job)


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
