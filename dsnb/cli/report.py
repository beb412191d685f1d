"""A snapshot of a service as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsnb.monitor.snapshot import JobStatus, Snapshot, TrainerStatus, WorkerStatus

EVENTS = 5
"""How many of the newest events are shown."""


def report(snapshot: Snapshot) -> str:
    """The whole service: workers, jobs, and what happened lately."""
    lines = [f"{snapshot.service} at {snapshot.target}, up {duration(snapshot.time - snapshot.started)}"]
    count = len(snapshot.workers)
    lines += ["", f"{count} worker{'' if count == 1 else 's'}", *workers(snapshot.workers)]
    for job in snapshot.jobs:
        lines += ["", *job_lines(job)]
    if not snapshot.jobs:
        lines += ["", "no jobs"]
    if snapshot.events:
        lines.append("")
    for event in snapshot.events[-EVENTS:]:
        lines.append(f"{event.level}: {event.text} ({duration(snapshot.time - event.time)} ago)")
    return "\n".join(lines)


def workers(found: Sequence[WorkerStatus]) -> list[str]:
    """A line for each worker."""
    header = ["name", "address", "state", "tasks", "produced", "sent", "cache"]
    rows = [
        [
            worker.name,
            worker.address,
            worker.state,
            f"{worker.tasks}",
            f"{worker.produced:,}",
            f"{worker.sent_elements:,}",
            f"{size(worker.cache_bytes)} of {size(worker.capacity_bytes)}",
        ]
        for worker in found
    ]
    return table(header, rows)


def job_lines(job: JobStatus) -> Iterator[str]:
    """One job: what it is, its splits, a line for each trainer."""
    yield f"job {job.name}: {job.mode}, iteration {job.iteration}, {job.state}"
    yield f"  {job.pipeline}"
    yield f"  {job.produced:,} elements produced, {job.consumed:,} consumed"
    for split in job.splits:
        lost = f", {split.lost} lost" if split.lost else ""
        yield f"  splits of {split.source}: {split.done} of {split.total} done, {split.in_hand} in hand{lost}"
    for shard in job.shards:
        yield f"  shard {shard.shard} of {len(job.shards)}: {shard.state}{shard.worker and f' on {shard.worker}'}"
    header = ["trainer" if job.cached else "client", "elements", "hits", "misses", "lag", "skipped", "lost"]
    yield from table(header, list(map(trainer_row, job.trainers)))


def trainer_row(trainer: TrainerStatus) -> list[str]:
    """The cells of one trainer."""
    counts = (trainer.elements, trainer.hits, trainer.misses, trainer.lag, trainer.skipped, trainer.lost)
    return [trainer.trainer_id, *(f"{count:,}" for count in counts)]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as they need to be; empty without rows."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in (header, *rows)
    ]


def size(count: int) -> str:
    """Bytes in a unit that leaves at most four digits, as in `1.5 MB`."""
    for limit, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count} B"


def duration(seconds: float) -> str:
    """Seconds as people say them, as in `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
