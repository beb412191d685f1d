"""A snapshot of a service as HTML without styles or scripts, for a cell."""

from __future__ import annotations

from html import escape

from dsnb.monitor.formatting import format_mode, plural
from dsnb.monitor.hosts import host_lines
from dsnb.monitor.snapshot import NOT_ENCRYPTED, JobStatus, Snapshot
from dsnb.monitor.status_text import autoscale_text, guarantee_text
from dsnb.monitor.tables import has_lost_elements, html_table, trainer_table, worker_table

_MAX_JOBS = 8
_WORKER_COLUMNS = ("worker", "host", "state", "isolation", "tasks", "produced", "cache_bytes")
_TRAINER_COLUMNS = ("trainer", "elements", "wait", "lag", "hits", "misses", "skipped", "lost")


def summary(snapshot: Snapshot) -> str:
    """One line about the state of the service: workers, jobs, skipped elements, lost splits."""
    read = [job for job in snapshot.jobs if job.state == "running"]
    parts = [
        plural(len(snapshot.workers), "worker") + autoscale_text(snapshot),
        f"{len(read)} of {snapshot.job_count:,} jobs running",
    ]
    skipped = sum(trainer.skipped for job in snapshot.jobs for trainer in job.trainers)
    lost = sum(job.lost_splits for job in snapshot.jobs)
    parts += [f"<b>{skipped:,} elements skipped</b>"] if skipped else []
    parts += [f"<b>{plural(lost, 'split')} lost</b>"] if lost else []
    parts += ["<b>elements lost</b>"] if not lost and any(map(has_lost_elements, snapshot.jobs)) else []
    return " · ".join(parts)


def status_tables(snapshot: Snapshot) -> str:
    """The current workers and the newest jobs, as HTML tables."""
    return (
        _network_warning(snapshot)
        + _workers(snapshot)
        + "".join(map(job_html, snapshot.jobs[-1 : -_MAX_JOBS - 1 : -1]))
        + _older(snapshot)
    )


def _network_warning(snapshot: Snapshot) -> str:
    return f"<p>⚠ {NOT_ENCRYPTED}</p>" if snapshot.network == "plain" else ""


def _older(snapshot: Snapshot) -> str:
    more = snapshot.job_count - min(len(snapshot.jobs), _MAX_JOBS)
    return f"<p>and {more:,} older jobs: <code>svc.status().jobs</code></p>" if more > 0 else ""


def _workers(snapshot: Snapshot) -> str:
    if not snapshot.workers:
        return "<p>No workers: <code>svc.scale(2)</code> starts two.</p>"
    hosts = "".join(f"<p>{escape(line.strip())}</p>" for line in host_lines(snapshot))
    return html_table(worker_table(snapshot.workers, _WORKER_COLUMNS)) + hosts


def job_html(job: JobStatus) -> str:
    """One job and its trainers, as HTML."""
    sharing = ", shared through the cross-trainer cache" if job.cached else ""
    title = (
        f"<p><b>job {escape(job.name)}</b> ({format_mode(job.mode)}{sharing}): {job.state}, "
        f"{job.produced:,} elements produced, {job.consumed:,} consumed<br><code>{escape(job.pipeline)}</code></p>"
    )
    title += f"<p>{escape(guarantee_text(job))}</p>" if job.guarantee else ""
    title += f"<p>{escape(job.receipt)}</p>" if job.receipt else ""
    return title + (html_table(trainer_table(job, _TRAINER_COLUMNS), bars=True) if job.trainers else "")
