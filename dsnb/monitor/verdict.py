"""What limits a job, in sentences with numbers, and what to change: the words of the card, the page and the report.

Theory of operation. Two snapshots a few seconds apart tell what each reader did with its time: it waited, it made
elements of what had come, or it was in its own loop. Where no reader waits for long the input is no matter. Where one
does, the causes are looked for in the order in which one hides the next: nobody works; another trainer holds the
window; the interpreter is held; another consumer of the round is slow; the link is full; the reader's own decoding; one
worker behind the others; workers at their limit, by one operation or by all, and perhaps the processors too; workers
that are not asked in time. The first that shows is the verdict. What trainers lose, or will lose soon, is told beside
it, since it costs data and not time.

Pure: no clock, no service.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsnb.dataclass import dataclass
from dsnb.monitor.case import Case, who
from dsnb.monitor.causes import BUSY, CAUSES, Cause, decoding
from dsnb.monitor.rates import rates
from dsnb.monitor.snapshot import Snapshot, TrainerStatus
from dsnb.monitor.words import count, duration, level_of, plural, rate, share, size

LEAST_SPAN_S = 1.0
"""Two snapshots that are nearer to one another tell nothing reliable."""

_SOON_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One sentence or two about a job, with the remedy.

    Attributes:
        level: "good" (nothing to do), "warn" or "bad".
        cause: "none", "paused", "no workers", "holder", "interpreter", "consumer", "link", "client", "worker",
            "operation", "workers", "processors", "demand", "window" or "loss".
        subject: The trainer, worker or operation that it is about; empty where it is the job.
        remedy: What to change; empty where nothing needs to be.

    Example:
        >>> print(Verdict(level="bad", cause="link", job="train", text="The link is full.", remedy="Compress."))
        The link is full. Compress.
    """

    level: str
    cause: str
    job: str
    text: str
    remedy: str = ""
    subject: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}".strip()


def verdicts(before: Snapshot, after: Snapshot) -> tuple[Verdict, ...]:
    """What can be said of each job that is read, from two snapshots of one run, the older first; the worst first."""
    between = rates(before, after)
    if between.span_s < LEAST_SPAN_S:
        return ()
    found = [
        verdict
        for job in after.jobs
        if (was := before.job(job.name)) is not None
        for verdict in _of_job(Case(before=was, job=job, now=after, between=between))
    ]
    return tuple(sorted(found, key=lambda verdict: ("bad", "warn", "good").index(verdict.level)))


def _of_job(case: Case) -> Iterator[Verdict]:
    job = case.job
    if job.paused_by:
        yield Verdict(
            level="warn",
            cause="paused",
            job=job.name,
            text=f"Job {job.name!r} is paused (by {job.paused_by}).",
            remedy=f"svc.resume({job.name!r}) goes on.",
        )
        return
    yield from _losses(case)
    # Who came between the two snapshots has only begun: what it waited for is the start of a pipeline.
    known = {trainer.trainer_id for trainer in case.before.trainers}
    reading = [t for t in job.trainers if t.trainer_id in known and case.of(t).active_s >= LEAST_SPAN_S / 2]
    if not reading or job.state == "finished":
        return
    waiter = max(reading, key=lambda trainer: case.of(trainer).wait_share or 0.0)
    yield _input(Case(before=case.before, job=job, now=case.now, between=case.between, waiter=waiter))


def _input(case: Case) -> Verdict:
    """Whether the job is held up by its input, and by what."""
    assert case.waiter is not None
    how = level_of(case.wait)
    if how == "good":
        cause = decoding(case)
        return _not_bound(case) if cause is None else _held_up(case, "warn", "is held up by its reader", cause)
    cause = next(found for rule in CAUSES if (found := rule(case)) is not None)
    return _held_up(case, how, "is input-bound" if how == "bad" else "is a little input-bound", cause)


def _held_up(case: Case, level: str, how: str, cause: Cause) -> Verdict:
    assert case.waiter is not None
    return Verdict(
        level=level,
        cause=cause.cause,
        job=case.job.name,
        text=f"Job {case.job.name!r} {how}: {who(case, case.waiter)} waits {share(case.wait)} of its time. "
        f"{cause.text}",
        remedy=cause.remedy,
        subject=cause.subject,
    )


def _not_bound(case: Case) -> Verdict:
    assert case.waiter is not None
    own = max((case.of(trainer).own_share or 0.0 for trainer in case.job.trainers), default=0.0)
    text = f"Job {case.job.name!r} is not input-bound: {who(case, case.waiter)} waits {share(case.wait)} of its time"
    loop = f" and spends {share(own)} in its own loop, at {rate(case.of(case.waiter).consumed)}" if own > BUSY else ""
    return Verdict(
        level="good",
        cause="none",
        job=case.job.name,
        text=f"{text}{loop}.",
        remedy="More workers would change nothing." if loop else "",
        subject=case.waiter.trainer_id if loop else "",
    )


# ---- what is lost


def _losses(case: Case) -> Iterator[Verdict]:
    for trainer in case.job.trainers:
        skipped = case.of(trainer).skipped
        if skipped > 0:
            yield _skips(case, trainer, skipped)
        elif 0 < trainer.falls_off_s < _SOON_S:
            yield _will_skip(case, trainer)
    lost = case.job.lost_splits - case.before.lost_splits
    if lost > 0:
        yield Verdict(
            level="bad",
            cause="loss",
            job=case.job.name,
            text=f"Job {case.job.name!r} lost {plural(lost, 'split')} with a worker within "
            f"{duration(case.between.span_s)}.",
            remedy="The events tell which worker and why.",
        )


def _skips(case: Case, trainer: TrainerStatus, skipped: float) -> Verdict:
    return Verdict(
        level="bad",
        cause="window",
        job=case.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} loses {rate(skipped)} of job {case.job.name!r} ({count(trainer.skipped)} "
        f"so far): it takes {rate(case.of(trainer).consumed)} of {rate(case.rates.produced)}, and the window keeps "
        f"{_window(case)}.",
        remedy='Let nothing be lost with CrossTrainerCache(on_lag="wait") or "spill", give it a job of its own, or, if '
        "it only pauses now and then, a larger window: start(cross_trainer_cache_size_bytes=...).",
    )


def _will_skip(case: Case, trainer: TrainerStatus) -> Verdict:
    return Verdict(
        level="warn",
        cause="window",
        job=case.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} of job {case.job.name!r} is {count(trainer.lag)} elements behind and "
        f"will begin to lose data in {duration(trainer.falls_off_s)}: the window keeps {_window(case)}.",
        remedy='CrossTrainerCache(on_lag="wait") or "spill" loses nothing; a larger window gives it more time.',
    )


def _window(case: Case) -> str:
    """What the windows of a job hold, in bytes, elements and time."""
    tasks = [task for task in case.job.tasks if task.capacity_bytes]
    elements = sum(task.head - task.tail for task in tasks)
    made = case.rates.produced
    span = f", {duration(elements / made)}" if made else ""
    return f"{plural(elements, 'element')} ({size(sum(task.window_bytes for task in tasks))}{span})"
