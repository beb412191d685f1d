"""Verdicts: what limits a job, in sentences with numbers, and what to change; for the card, the page and the report.

Theory of operation. Two snapshots a few seconds apart show how each reader spent its time: waiting, building elements
from received data, or in its own loop. If no reader waits for long, the job is not input-bound. If one does, the
possible causes are checked in the order in which one hides the next: no workers; another trainer holds the window; GIL
contention; another consumer of the round is slow; other jobs on the same workers; the network; the reader's own
decoding, or its copies to a device; one worker slower than the others; saturated workers, by one operation or by all,
and perhaps the CPUs too; the overhead of requesting and transferring elements. The first that applies is the verdict.
Elements that trainers lose, or will lose soon, get a verdict of their own, because they cost data and not time.

Pure: no clock, no service.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import ceil

import msgspec
from msgspec.structs import replace

from dsnb.monitor.causes import CAUSES, SATURATED_SHARE, Cause, convert_bound, decode_bound
from dsnb.monitor.evidence import Evidence
from dsnb.monitor.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
    format_time,
    plural,
    wait_level,
)
from dsnb.monitor.past_jobs import past_verdict_parts, waited_most
from dsnb.monitor.rates import rates, same_run
from dsnb.monitor.readers import reader_label
from dsnb.monitor.snapshot import JobStatus, Snapshot, TrainerStatus

MIN_SPAN_S = 1.0
"""Minimum seconds between two snapshots; rates over a shorter time are not reliable."""
VERDICT_SPAN_S = 10.0
"""A verdict on a series of snapshots is about this many seconds, or fewer if the job was read for less."""

_WARN_BEFORE_LOSS_S = 60.0
_MAX_PAST_VERDICTS = 3
_PREVENTS_LOSS = {
    "skip": 'CrossTrainerCache(on_lag="wait") or "spill" prevents the loss',
    "spill": 'CrossTrainerCache(on_lag="wait"), or more room for what it spills (WorkerConfig.spill_dir), prevents the '
    "loss",
    "wait": "A slower pace of the others prevents the loss",
}
"""What prevents a trainer's loss, by its `on_lag`: never what it uses already."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One or two sentences about a job, with the remedy.

    Attributes:
        level: "good" (nothing to do), "warn" or "bad".
        cause: "none", "paused", "no workers", "holder", "interpreter", "consumer", "other jobs", "link", "client",
            "conversion", "worker", "operation", "workers", "processors", "demand", "window", "loss", "evicted" or
            "ended".
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
    return _worst_first(_verdicts_between(before, after, {job.name for job in after.jobs}))


def latest_verdicts(snapshots: Sequence[Snapshot], job: str | None = None) -> tuple[Verdict, ...]:
    """The verdicts over the last seconds in which each job was read, the worst first.

    A job that ended keeps the verdict on its last seconds, with the time: what its readers did not do afterwards says
    nothing of it. If no job was read meanwhile, the totals of the newest ones say what limited them.

    Args:
        snapshots: Snapshots of one service, the oldest first.
        job: The job; by default all jobs of the snapshots.
    """
    jobs_by_span: dict[tuple[int, int], set[str]] = {}
    for name, span in _last_read_spans(snapshots, job).items():
        jobs_by_span.setdefault(span, set()).add(name)
    found: list[Verdict] = []
    for (first, last), names in jobs_by_span.items():
        ended = last < len(snapshots) - 1
        between = _verdicts_between(snapshots[first], snapshots[last], names, predict=not ended)
        at = format_time(snapshots[last].time)
        found += (replace(one, text=f"Last read at {at}: {one.text}") if ended else one for one in between)
    return _worst_first(found or _past_verdicts(snapshots, job))


def _past_verdicts(snapshots: Sequence[Snapshot], only: str | None) -> list[Verdict]:
    """The verdicts on the newest jobs that were read before the first snapshot and are not read any more."""
    found: list[Verdict] = []
    jobs = snapshots[-1].jobs if snapshots else ()
    if only is None and any(map(_is_read, jobs)):
        return found  # it says nothing of those that are read
    for job in reversed(jobs):
        reader = waited_most(job) if only in (None, job.name) and not _is_read(job) else None
        if reader is not None and len(found) < _MAX_PAST_VERDICTS:
            level, text, remedy = past_verdict_parts(job, reader)
            subject = reader.trainer_id
            found.append(Verdict(level=level, cause="ended", job=job.name, text=text, remedy=remedy, subject=subject))
    return found


def _last_read_spans(snapshots: Sequence[Snapshot], only: str | None) -> dict[str, tuple[int, int]]:
    """For each job, the index of the last snapshot in which it was read, after that of the first one shortly before."""
    spans: dict[str, tuple[int, int]] = {}
    for at in reversed(range(len(snapshots))):
        past = snapshots[at]
        for job in past.jobs:
            if only in (None, job.name) and _is_read(job):
                _, last = spans.get(job.name, (at, at))
                if past.time >= snapshots[last].time - VERDICT_SPAN_S and same_run(past, snapshots[last]):
                    spans[job.name] = at, last
        if only in spans and past.time < snapshots[spans[only][1]].time - VERDICT_SPAN_S:
            break
    return spans


def is_read(snapshot: Snapshot, job: str | None) -> bool:
    """Whether a job is read in a snapshot.

    Args:
        snapshot: The snapshot.
        job: The job's name; None for any job.
    """
    return any(_is_read(one) for one in snapshot.jobs if job in (None, one.name))


def _is_read(job: JobStatus) -> bool:
    return job.state != "finished" and (job.clients > 0 or bool(job.paused_by))


def _verdicts_between(
    before: Snapshot, after: Snapshot, names: Collection[str], *, predict: bool = True
) -> Iterator[Verdict]:
    between = rates(before, after)
    if between.span_s < MIN_SPAN_S:
        return
    for job in after.jobs:
        if job.name in names and (was := before.job(job.name)) is not None:
            yield from _job_verdicts(Evidence(job_before=was, job=job, snapshot=after, rates=between), predict=predict)


def _worst_first(found: Iterable[Verdict]) -> tuple[Verdict, ...]:
    return tuple(sorted(found, key=lambda verdict: ("bad", "warn", "good").index(verdict.level)))


def _job_verdicts(evidence: Evidence, *, predict: bool) -> Iterator[Verdict]:
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
    yield from _loss_verdicts(evidence, predict=predict)
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
        cause = decode_bound(evidence) or convert_bound(evidence)
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
        text=f"Job {evidence.job.name!r} {condition}: {reader_label(evidence.job, evidence.waiting_reader)} waits "
        f"{format_share(evidence.wait_share)} of its time. "
        f"{cause.text}",
        remedy=cause.remedy,
        subject=cause.subject,
    )


def _not_input_bound_verdict(evidence: Evidence) -> Verdict:
    assert evidence.waiting_reader is not None
    own = max((evidence.trainer_rates(trainer).own_loop_share or 0.0 for trainer in evidence.job.trainers), default=0.0)
    text = (
        f"Job {evidence.job.name!r} is not input-bound: {reader_label(evidence.job, evidence.waiting_reader)} waits "
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


def _loss_verdicts(evidence: Evidence, *, predict: bool) -> Iterator[Verdict]:
    for trainer in evidence.job.trainers:
        skipped = evidence.trainer_rates(trainer).skipped
        if skipped > 0 and trainer.evicted_by:
            yield _evicted_verdict(evidence, trainer)
        elif skipped > 0:
            yield _skipping_verdict(evidence, trainer, skipped)
        elif predict and 0 < trainer.eviction_in_s < _WARN_BEFORE_LOSS_S and _is_falling_behind(evidence, trainer):
            yield _will_skip_verdict(evidence, trainer)
    splits = evidence.job.lost_splits - evidence.job_before.lost_splits
    if splits > 0 or _losses(evidence.job) > _losses(evidence.job_before):
        what = plural(splits, "split") if splits > 0 else "elements"
        yield Verdict(
            level="bad",
            cause="loss",
            job=evidence.job.name,
            text=f"Job {evidence.job.name!r} lost {what} with a worker within "
            f"{format_duration(evidence.rates.span_s)}.",
            remedy="The events name the worker and the reason.",
        )


def _losses(job: JobStatus) -> int:
    """How many elements, and parts of an unknown number of elements, its trainers did not get."""
    return sum(trainer.lost + trainer.lost_parts for trainer in job.trainers)


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
        remedy=f"{_PREVENTS_LOSS.get(trainer.on_lag, _PREVENTS_LOSS['skip'])}; so does a job of its own. If it only "
        "pauses now and then, a larger window is enough: start(cross_trainer_cache_size_bytes=...).",
    )


def _evicted_verdict(evidence: Evidence, trainer: TrainerStatus) -> Verdict:
    return Verdict(
        level="warn",
        cause="evicted",
        job=evidence.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} of job {evidence.job.name!r} was evicted by {trainer.evicted_by}: "
        f"nothing is kept for it any more, and it has missed {plural(trainer.skipped, 'element')} so far.",
        remedy="When it begins to iterate again, elements are kept for it again.",
    )


def _is_falling_behind(evidence: Evidence, trainer: TrainerStatus) -> bool:
    """Whether a trainer reads, and fell further behind the fastest one between the snapshots.

    A worker's estimate alone would also count a trainer that has left, one that waits for data, and one whose distance
    only changes by the frame that is on its way to it. Its lag would also count what is produced ahead of the fastest
    trainer, for which nothing is evicted.
    """
    before = next((one for one in evidence.job_before.trainers if one.trainer_id == trainer.trainer_id), None)
    wait_share = evidence.trainer_rates(trainer).wait_share or 0.0
    if before is None or trainer.evicted_by or not trainer.clients or wait_level(wait_share) == "bad":
        return False
    was, now = _distances(evidence.job_before, before), _distances(evidence.job, trainer)
    growth = sum(now[task] - was[task] for task in now.keys() & was.keys())
    return growth > 0 and sum(now.values()) > _elements_on_the_way(evidence, trainer)


def _distances(job: JobStatus, trainer: TrainerStatus) -> dict[str, int]:
    """How many elements a trainer is behind the one that has read furthest, by task."""
    furthest: dict[str, int] = {}
    for cursor in (cursor for other in job.trainers for cursor in other.cursors):
        furthest[cursor.task_id] = max(cursor.offset, furthest.get(cursor.task_id, 0))
    return {cursor.task_id: furthest[cursor.task_id] - cursor.offset for cursor in trainer.cursors}


def _elements_on_the_way(evidence: Evidence, trainer: TrainerStatus) -> int:
    """How many elements a trainer may lag because they travel in frames: one frame from each of its tasks."""
    links = (link for link in evidence.job.links if link.trainer_id == trainer.trainer_id and link.frame_slices)
    return sum(ceil(link.sent / link.frame_slices) for link in links)


def _will_skip_verdict(evidence: Evidence, trainer: TrainerStatus) -> Verdict:
    return Verdict(
        level="warn",
        cause="window",
        job=evidence.job.name,
        subject=trainer.trainer_id,
        text=f"Trainer {trainer.trainer_id!r} of job {evidence.job.name!r} is {format_count(trainer.lag)} elements "
        f"behind and will begin to lose data in {format_duration(trainer.eviction_in_s)}: the window holds only "
        f"{_window_text(evidence)}.",
        remedy=f"{_PREVENTS_LOSS.get(trainer.on_lag, _PREVENTS_LOSS['skip'])}; a larger window gives it more time.",
    )


def _window_text(evidence: Evidence) -> str:
    """The contents of a job's windows as text, in elements, bytes and seconds."""
    tasks = [task for task in evidence.job.tasks if task.capacity_bytes]
    elements = sum(task.head - task.tail for task in tasks)
    made = evidence.job_rates.produced
    span = f", {format_duration(elements / made)}" if made else ""
    return f"{plural(elements, 'element')} ({format_bytes(sum(task.window_bytes for task in tasks))}{span})"
