"""Verdicts: what limits a job, in sentences with numbers, and what to change; for the card, the page and the report.

Theory of operation. Two snapshots a few seconds apart show how each reader spent its time: waiting, building elements
from received data, or in its own loop. If no reader waits for long, the job is not input-bound. If one does, the
possible causes are checked in the order in which one hides the next: no workers; another trainer holds the window; GIL
contention; another consumer of the round is slow; the network; the reader's own decoding; one worker slower than the
others; saturated workers, by one operation or by all, and perhaps the CPUs too; the overhead of requesting and
transferring elements. The first that applies is the verdict. Elements that trainers lose, or will lose soon, get a
verdict of their own, because they cost data and not time.

Pure: no clock, no service.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

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
"""Minimum seconds between two snapshots; rates over a shorter time are not reliable."""

_WARN_BEFORE_LOSS_S = 60.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One or two sentences about a job, with the remedy.

    Attributes:
        level: "good" (nothing to do), "warn" or "bad".
        cause: "none", "paused", "no workers", "holder", "interpreter", "consumer", "link", "client", "worker",
            "operation", "workers", "processors", "demand", "window" or "loss".
        job: The name of the job.
        text: What limits the job, or that nothing does.
        subject: The trainer, worker or operation that it is about; empty if it is about the job.
        remedy: What to change; empty if nothing needs to change.

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
    """The verdicts on all jobs with readers, the worst first.

    Args:
        before: The older snapshot.
        after: The newer snapshot of the same run.
    """
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
            remedy=f"svc.resume({job.name!r}) continues it.",
        )
        return
    yield from _loss_verdicts(evidence)
    # Ignore readers that joined between the two snapshots: they waited for the pipeline to start.
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
    """Whether the job is input-bound, and the cause."""
    assert evidence.waiting_reader is not None
    level = wait_level(evidence.wait_share)
    if level == "good":
        cause = decode_bound(evidence)
        return (
            _not_input_bound_verdict(evidence)
            if cause is None
            else _bottleneck_verdict(evidence, "warn", "is slowed down by its reader", cause)
        )
    cause = next(found for rule in CAUSES if (found := rule(evidence)) is not None)
    return _bottleneck_verdict(
        evidence, level, "is input-bound" if level == "bad" else "is slightly input-bound", cause
    )


def _bottleneck_verdict(evidence: Evidence, level: str, condition: str, cause: Cause) -> Verdict:
    assert evidence.waiting_reader is not None
    return Verdict(
        level=level,
        cause=cause.cause,
        job=evidence.job.name,
        text=f"Job {evidence.job.name!r} {condition}: {reader_label(evidence, evidence.waiting_reader)} waits "
        f"{format_share(evidence.wait_share)} of its time. "
        f"{cause.text}",
        remedy=cause.remedy,
        subject=cause.subject,
    )


def _not_input_bound_verdict(evidence: Evidence) -> Verdict:
    assert evidence.waiting_reader is not None
    own = max((evidence.trainer_rates(trainer).own_loop_share or 0.0 for trainer in evidence.job.trainers), default=0.0)
    text = (
        f"Job {evidence.job.name!r} is not input-bound: {reader_label(evidence, evidence.waiting_reader)} waits "
        f"{format_share(evidence.wait_share)} of its time"
    )
    loop = (
        f" and spends {format_share(own)} in its own loop, at "
        f"{format_rate(evidence.trainer_rates(evidence.waiting_reader).consumed)}"
        if own > SATURATED_SHARE
        else ""
    )
    return Verdict(
        level="good",
        cause="none",
        job=evidence.job.name,
        text=f"{text}{loop}.",
        remedy="More workers would not help." if loop else "",
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
            remedy="The events name the worker and the reason.",
        )


def _skipping_verdict(evidence: Evidence, trainer: TrainerStatus, skipped: float) -> Verdict:
    return Verdict(
        level="bad",
        cause="window",
        job=evidence.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} loses {format_rate(skipped)} of job {evidence.job.name!r} "
        f"({format_count(trainer.skipped)} so far): it consumes "
        f"{format_rate(evidence.trainer_rates(trainer).consumed)} of {format_rate(evidence.job_rates.produced)} "
        f"produced, and the window holds only {_window_text(evidence)}.",
        remedy='CrossTrainerCache(on_lag="wait") or "spill" prevents the loss; so does a job of its own. If it only '
        "pauses now and then, a larger window is enough: start(cross_trainer_cache_size_bytes=...).",
    )


def _will_skip_verdict(evidence: Evidence, trainer: TrainerStatus) -> Verdict:
    return Verdict(
        level="warn",
        cause="window",
        job=evidence.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} of job {evidence.job.name!r} is {format_count(trainer.lag)} elements "
        f"behind and will begin to lose data in {format_duration(trainer.eviction_in_s)}: the window holds only "
        f"{_window_text(evidence)}.",
        remedy='CrossTrainerCache(on_lag="wait") or "spill" prevents the loss; a larger window gives it more time.',
    )


def _window_text(evidence: Evidence) -> str:
    """The contents of a job's windows as text, in elements, bytes and seconds."""
    tasks = [task for task in evidence.job.tasks if task.capacity_bytes]
    elements = sum(task.head - task.tail for task in tasks)
    made = evidence.job_rates.produced
    span = f", {format_duration(elements / made)}" if made else ""
    return f"{plural(elements, 'element')} ({format_bytes(sum(task.window_bytes for task in tasks))}{span})"
