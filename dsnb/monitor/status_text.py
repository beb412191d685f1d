"""A snapshot of a service as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from dsnb.monitor.formatting import format_duration, format_mode, plural
from dsnb.monitor.hosts import host_lines
from dsnb.monitor.snapshot import NOT_ENCRYPTED, JobStatus, Snapshot
from dsnb.monitor.tables import text_table, trainer_table, worker_table

MAX_EVENTS = 5
"""The number of recent events to print."""
_WORKER_COLUMNS = (
    "worker",
    "host",
    "address",
    "state",
    "tasks",
    "produced",
    "sent_bytes",
    "cache_bytes",
    "capacity_bytes",
)
_TRAINER_COLUMNS = ("trainer", "elements", "hits", "misses", "lag", "skipped", "lost")


def status_text(snapshot: Snapshot) -> str:
    """The whole service as text: workers, jobs and recent events."""
    lines = [f"{snapshot.service} at {snapshot.target}, up {format_duration(snapshot.time - snapshot.started)}"]
    if snapshot.network == "plain":
        lines.append(f"warning: {NOT_ENCRYPTED}")
    lines += ["", plural(len(snapshot.workers), "worker") + autoscale_text(snapshot)]
    lines += text_table(worker_table(snapshot.workers, _WORKER_COLUMNS))
    lines += host_lines(snapshot)
    for job in snapshot.jobs:
        lines += ["", *job_lines(job)]
    if not snapshot.jobs:
        lines += ["", "no jobs"]
    lines += older_jobs_lines(snapshot)
    if snapshot.events:
        lines.append("")
    for event in snapshot.events[-MAX_EVENTS:]:
        lines.append(f"{event.level}: {event.text} ({format_duration(snapshot.time - event.time)} ago)")
    return "\n".join(lines)


def autoscale_text(snapshot: Snapshot) -> str:
    """The limits of autoscaling and what the jobs need, as the end of a line; empty while it is off."""
    auto = snapshot.autoscale
    return f", autoscaling between {auto.minimum} and {auto.maximum}: {auto.wanted} needed" if auto is not None else ""


def older_jobs_lines(snapshot: Snapshot) -> list[str]:
    """One line that sums up the older jobs, which are not listed individually; empty if there are none."""
    if snapshot.older is None or not snapshot.older.jobs:
        return []
    sums = snapshot.older
    lost = f", {plural(sums.lost_splits, 'split')} lost" if sums.lost_splits else ""
    return ["", f"and {plural(sums.jobs, 'older job')}: {sums.produced:,} produced, {sums.consumed:,} consumed{lost}"]


def job_lines(job: JobStatus) -> Iterator[str]:
    """One job: its state, its splits, and a row for each trainer."""
    yield f"job {job.name}: {format_mode(job.mode)}, pass {job.iteration + 1}, {job.state}"
    yield f"  {job.pipeline}"
    yield f"  {job.produced:,} elements produced, {job.consumed:,} consumed"
    if job.guarantee:  # not in recordings of earlier versions
        yield f"  {guarantee_text(job)}"
    if job.receipt:
        yield f"  {job.receipt}"
    yield from split_lines(job)
    for shard in job.shards:
        yield f"  shard {shard.shard} of {len(job.shards)}: {shard.state}{shard.worker and f' on {shard.worker}'}"
    yield from text_table(trainer_table(job, _TRAINER_COLUMNS))


def guarantee_text(job: JobStatus) -> str:
    """How often each element of a job comes if workers die, and why."""
    reason = f": {job.guarantee_reason}" if job.guarantee_reason else ""
    return f"if a worker dies, each element comes {job.guarantee}{reason}"


def split_lines(job: JobStatus) -> Iterator[str]:
    """A line for each source whose splits the dispatcher assigns."""
    for split in job.splits:
        lost = f", {split.lost} lost" if split.lost else ""
        yield f"  splits of {split.source}: {split.done} of {split.total} done, {split.in_hand} in hand{lost}"
