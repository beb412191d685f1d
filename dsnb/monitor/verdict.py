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
from dsnb.monitor.causes import CAUSES, SATURATED_SHARE, Cause, decode_bound
from dsnb.monitor.evidence import Evidence, reader_label
from dsnb.monitor.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
    plural,
    wait_level,
)
from dsnb.monitor.rates import rates
from dsnb.monitor.snapshot import Snapshot, TrainerStatus

MIN_SPAN_S = 1.0
"""Two snapshots that are nearer to one another tell nothing reliable."""

_WARN_BEFORE_LOSS_S = 60.0


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
    if between.span_s < MIN_SPAN_S:
        return ()
    found = [
        verdict
        for job in after.jobs
        if (was := before.job(job.name)) is not None
        for verdict in _job_verdicts(Evidence(job_before=was, job=job, snapshot=after, rates=between))
    ]
    return tuple(sorted(found, key=lambda verdict: ("bad", "warn", "good").index(verdict.level)))


def _job_verdicts(evidence: Evidence) -> Iterator[Verdict]:
    job = evidence.job
    if job.paused_by:
        yield Verdict(
            level="warn",
            cause="paused",
            job=job.name,
            text=f"Job {job.name!r} is paused (by {job.paused_by}).",
            remedy=f"svc.resume({job.name!r}) goes on.",
        )
        return
    yield from _loss_verdicts(evidence)
    # Who came between the two snapshots has only begun: what it waited for is the start of a pipeline.
    known = {trainer.trainer_id for trainer in evidence.job_before.trainers}
    reading = [
        t for t in job.trainers if t.trainer_id in known and evidence.trainer_rates(t).active_s >= MIN_SPAN_S / 2
    ]
    if not reading or job.state == "finished":
        return
    waiter = max(reading, key=lambda trainer: evidence.trainer_rates(trainer).wait_share or 0.0)
    yield _input_verdict(
        Evidence(
            job_before=evidence.job_before,
            job=job,
            snapshot=evidence.snapshot,
            rates=evidence.rates,
            waiting_reader=waiter,
        )
    )


def _input_verdict(evidence: Evidence) -> Verdict:
    """Whether the job is held up by its input, and by what."""
    assert evidence.waiting_reader is not None
    level = wait_level(evidence.wait_share)
    if level == "good":
        cause = decode_bound(evidence)
        return (
            _not_input_bound_verdict(evidence)
            if cause is None
            else _bottleneck_verdict(evidence, "warn", "is held up by its reader", cause)
        )
    cause = next(found for rule in CAUSES if (found := rule(evidence)) is not None)
    return _bottleneck_verdict(
        evidence, level, "is input-bound" if level == "bad" else "is a little input-bound", cause
    )


def _bottleneck_verdict(evidence: Evidence, level: str, condition: str, cause: Cause) -> Verdict:
    assert evidence.waiting_reader is not None
    return Verdict(
        level=level,
        cause=cause.cause,
        job=evidence.job.name,
        text=f"Job {evidence.job.name!r} {condition}: {reader_label(evidence, evidence.waiting_reader)} waits {format_share(evidence.wait_share)} of its time. "
        f"{cause.text}",
        remedy=cause.remedy,
        subject=cause.subject,
    )


def _not_input_bound_verdict(evidence: Evidence) -> Verdict:
    assert evidence.waiting_reader is not None
    own = max((evidence.trainer_rates(trainer).own_loop_share or 0.0 for trainer in evidence.job.trainers), default=0.0)
    text = f"Job {evidence.job.name!r} is not input-bound: {reader_label(evidence, evidence.waiting_reader)} waits {format_share(evidence.wait_share)} of its time"
    loop = (
        f" and spends {format_share(own)} in its own loop, at {format_rate(evidence.trainer_rates(evidence.waiting_reader).consumed)}"
        if own > SATURATED_SHARE
        else ""
    )
    return Verdict(
        level="good",
        cause="none",
        job=evidence.job.name,
        text=f"{text}{loop}.",
        remedy="More workers would change nothing." if loop else "",
        subject=evidence.waiting_reader.trainer_id if loop else "",
    )


# ---- what is lost


def _loss_verdicts(evidence: Evidence) -> Iterator[Verdict]:
    for trainer in evidence.job.trainers:
        skipped = evidence.trainer_rates(trainer).skipped
        if skipped > 0:
            yield _skipping_verdict(evidence, trainer, skipped)
        elif 0 < trainer.eviction_in_s < _WARN_BEFORE_LOSS_S:
            yield _will_skip_verdict(evidence, trainer)
    lost = evidence.job.lost_splits - evidence.job_before.lost_splits
    if lost > 0:
        yield Verdict(
            level="bad",
            cause="loss",
            job=evidence.job.name,
            text=f"Job {evidence.job.name!r} lost {plural(lost, 'split')} with a worker within "
            f"{format_duration(evidence.rates.span_s)}.",
            remedy="The events tell which worker and why.",
        )


def _skipping_verdict(evidence: Evidence, trainer: TrainerStatus, skipped: float) -> Verdict:
    return Verdict(
        level="bad",
        cause="window",
        job=evidence.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} loses {format_rate(skipped)} of job {evidence.job.name!r} ({format_count(trainer.skipped)} "
        f"so far): it takes {format_rate(evidence.trainer_rates(trainer).consumed)} of {format_rate(evidence.job_rates.produced)}, and the window keeps "
        f"{_window_text(evidence)}.",
        remedy='Let nothing be lost with CrossTrainerCache(on_lag="wait") or "spill", give it a job of its own, or, if '
        "it only pauses now and then, a larger window: start(cross_trainer_cache_size_bytes=...).",
    )


def _will_skip_verdict(evidence: Evidence, trainer: TrainerStatus) -> Verdict:
    return Verdict(
        level="warn",
        cause="window",
        job=evidence.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} of job {evidence.job.name!r} is {format_count(trainer.lag)} elements behind and "
        f"will begin to lose data in {format_duration(trainer.eviction_in_s)}: the window keeps {_window_text(evidence)}.",
        remedy='CrossTrainerCache(on_lag="wait") or "spill" loses nothing; a larger window gives it more time.',
    )


def _window_text(evidence: Evidence) -> str:
    """What the windows of a job hold, in bytes, elements and time."""
    tasks = [task for task in evidence.job.tasks if task.capacity_bytes]
    elements = sum(task.head - task.tail for task in tasks)
    made = evidence.job_rates.produced
    span = f", {format_duration(elements / made)}" if made else ""
    return f"{plural(elements, 'element')} ({format_bytes(sum(task.window_bytes for task in tasks))}{span})"
