"""`View`: what one page shows at one moment; the input of all panels."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dsnb.dashboard.control_requests import Outcome, Request
from dsnb.dashboard.feed import FeedHealth, RateSample
from dsnb.dashboard.replay import ReplayPosition
from dsnb.monitor.formatting import format_rate
from dsnb.monitor.rates import JobRates, Rates
from dsnb.monitor.snapshot import JobStatus, Snapshot

TRAINER_COLOURS = 6
WORST_TASK = ""
"""No single task is selected: each trainer is shown in the task where it has the least room before eviction."""


RECENT_S = 10.0
_MAX_RECENT = 64

SPANS_S = {60: "1 min", 300: "5 min"}
"""The time spans that the figures can show, in seconds."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What the user has selected on the page; an empty string means automatic."""

    job: str = ""
    task: str = WORST_TASK
    span_s: int = 60

    def with_pick(self, kind: str, value: str) -> Selection:
        """The selection after one more pick; an invalid pick changes nothing."""
        if kind == "job":
            return replace(self, job=value, task=WORST_TASK)
        if kind == "task":
            return replace(self, task=value)
        spans = {str(span): span for span in SPANS_S}
        return replace(self, span_s=spans[value]) if kind == "span" and value in spans else self


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that this page may send, and the state of those that were sent.

    Attributes:
        allowed: Whether the page may send requests.
        read_only_reason: Why it may not, as text.
        unconfirmed: The destructive request whose button was pressed once.
        outcomes: The pending requests and those that ended recently.
    """

    allowed: bool = False
    read_only_reason: str = ""
    unconfirmed: Request | None = None
    outcomes: tuple[Outcome, ...] = ()

    @property
    def pending(self) -> frozenset[Request]:
        """The requests that have not ended yet."""
        return frozenset(outcome.request for outcome in self.outcomes if outcome.state == "pending")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a panel.

    Attributes:
        health: Whether the snapshots are current.
        selection: What the user has selected.
        sample: The newest snapshot with its rates; None before the first.
        recent: The samples of the last seconds, to smooth values that would otherwise jump.
        history: All samples within the selected time span.
        job: The job that is shown; None while there is none.
        control: The requests that the page may send.
        replay_position: The page's position in a recorded run; None for a live page.
    """

    health: FeedHealth
    selection: Selection = msgspec.field(default_factory=Selection)
    sample: RateSample | None = None
    recent: tuple[RateSample, ...] = ()
    history: tuple[RateSample, ...] = ()
    job: JobStatus | None = None
    control: ControlState = msgspec.field(default_factory=ControlState)
    replay_position: ReplayPosition | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before the first."""
        return self.sample.snapshot if self.sample else None

    @property
    def rates(self) -> Rates:
        """The newest rates; empty if the service is silent."""
        return self.sample.rates if self.sample and not self.health.stale else Rates()

    @property
    def measured(self) -> bool:
        """Whether rates are known: not for a silent service, and not at its first snapshot."""
        return self.rates.span_s > 0

    @property
    def known_rates(self) -> Rates | None:
        """The newest rates; None if they are unknown."""
        return self.rates if self.measured else None

    def format_rate(self, number: float) -> str:
        """A rate as text; a dash if rates are unknown."""
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
    """Build the view of a page from the samples of the selected time span."""
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
    """The picked job while it exists, else the first running job, else the newest."""
    job = snapshot.job(picked) if picked else None
    if job is not None or not snapshot.jobs:
        return job
    return next((job for job in snapshot.jobs if job.state == "running"), snapshot.jobs[-1])


def colour_class(job: JobStatus, trainer_id: str) -> str:
    """The CSS class of a trainer's colour, the same in every panel."""
    ids = [trainer.trainer_id for trainer in job.trainers]
    return f"t{ids.index(trainer_id) % TRAINER_COLOURS}" if trainer_id in ids else "t0"
