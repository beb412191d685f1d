"""`View`: what one page shows at one moment; the input of all panels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from dsnb.dashboard.control_requests import Outcome, Request
from dsnb.dashboard.feed import FeedHealth, RateSample
from dsnb.dashboard.replay import ReplayPosition
from dsnb.monitor.formatting import format_rate
from dsnb.monitor.rates import JobRates, Rates, rates, same_run
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
        peek: What this page asked for with its button "peek"; None if it did not, or has closed it.
    """

    allowed: bool = False
    read_only_reason: str = ""
    unconfirmed: Request | None = None
    outcomes: tuple[Outcome, ...] = ()
    peek: Outcome | None = None

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
        trainer_order: The ids of all trainers of the job that the page has seen, in the order of its rows.
        last_read: The snapshots of the last seconds in which the job was read, which may be before `history`, and the
            newest one; of any job while none is shown. Empty if only `history` is known.
    """

    health: FeedHealth
    selection: Selection = msgspec.field(default_factory=Selection)
    sample: RateSample | None = None
    recent: tuple[RateSample, ...] = ()
    history: tuple[RateSample, ...] = ()
    job: JobStatus | None = None
    control: ControlState = msgspec.field(default_factory=ControlState)
    replay_position: ReplayPosition | None = None
    trainer_order: tuple[str, ...] = ()
    last_read: tuple[Snapshot, ...] = ()

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

    @property
    def verdict_rates(self) -> JobRates:
        """The rates of the job that is shown over the seconds that its verdict is about; empty if they are unknown."""
        if self.job is None or not self.measured or len(self.recent) < 2:
            return JobRates()
        oldest, newest = self.recent[0].snapshot, self.recent[-1].snapshot
        return rates(oldest, newest).job(self.job.name) if same_run(oldest, newest) else self.job_rates

    def colour_class(self, trainer_id: str) -> str:
        """The CSS class of a trainer's colour, the same in every panel for the life of the job."""
        known = trainer_id in self.trainer_order
        return f"t{self.trainer_order.index(trainer_id) % TRAINER_COLOURS}" if known else "t0"


def view(
    history: Sequence[RateSample],
    health: FeedHealth,
    selection: Selection,
    control: ControlState | None = None,
    replay_position: ReplayPosition | None = None,
    trainer_order: TrainerOrder | None = None,
) -> View:
    """Build the view of a page from the samples of the selected time span; the page keeps its `trainer_order`."""
    sample = history[-1] if history else None
    job = choose_job(sample.snapshot, selection.job) if sample else None
    order: tuple[str, ...] = ()
    if job is not None:
        order = (trainer_order or TrainerOrder()).of(job.name, (one.trainer_id for one in job.trainers))
        job = _in_order(job, order)
    return View(
        health=health,
        selection=selection,
        sample=sample,
        recent=tuple(
            past for past in history[-_MAX_RECENT:] if sample and past.arrived_at > sample.arrived_at - RECENT_S
        ),
        history=tuple(history),
        job=job,
        trainer_order=order,
        control=control or ControlState(),
        replay_position=replay_position,
    )


def choose_job(snapshot: Snapshot, picked: str) -> JobStatus | None:
    """The picked job while it exists, else the first running job, else the newest."""
    job = snapshot.job(picked) if picked else None
    if job is not None or not snapshot.jobs:
        return job
    return next((job for job in snapshot.jobs if job.state == "running"), snapshot.jobs[-1])


class TrainerOrder:
    """The order in which a page saw the trainers of each job for the first time.

    Rows and colours follow it, so that both belong to a trainer for the life of its job, even if other trainers leave.

    Example:
        >>> order = TrainerOrder()
        >>> order.of("train", ["a", "b"]), order.of("train", ["b", "c"])
        (('a', 'b'), ('a', 'b', 'c'))
    """

    def __init__(self) -> None:
        self._ids: dict[str, dict[str, None]] = {}

    def of(self, job: str, present: Iterable[str]) -> tuple[str, ...]:
        """The ids of all trainers of a job that were ever seen, the oldest first, after adding those present."""
        known = self._ids.setdefault(job, {})
        known.update(dict.fromkeys(present))
        return tuple(known)


def _in_order(job: JobStatus, order: Sequence[str]) -> JobStatus:
    places = {trainer_id: at for at, trainer_id in enumerate(order)}
    return replace(job, trainers=tuple(sorted(job.trainers, key=lambda trainer: places[trainer.trainer_id])))
