"""The verdict on a job that is no longer read, from its totals: used if the run was not watched.

The totals say how long its readers waited and which operation took the work. They do not say what else was busy at that
time, so the causes of `causes.py` cannot be told apart any more.

Pure: no clock, no service.
"""

from __future__ import annotations

from dsnb.monitor.formatting import format_duration, format_share, wait_level
from dsnb.monitor.readers import reader_label
from dsnb.monitor.snapshot import JobStatus, TrainerStatus

_MIN_ACTIVE_NS = 1_000_000_000
"""A reader that read for less than this says nothing of its job."""
_NAMED_SHARE = 0.6
"""An operation that took at least this share of the work is named."""


def waited_most(job: JobStatus) -> TrainerStatus | None:
    """The reader that waited for the largest share of its time; None if nobody read for long enough."""
    readers = [trainer for trainer in job.trainers if trainer.active_ns >= _MIN_ACTIVE_NS]
    return max(readers, key=_wait_share, default=None)


def past_verdict_parts(job: JobStatus, reader: TrainerStatus) -> tuple[str, str, str]:
    """The level, the text and the remedy of the verdict on a job, as it was for one of its readers."""
    level = wait_level(_wait_share(reader))
    was = {"good": "was not input-bound", "warn": "was slightly input-bound", "bad": "was input-bound"}[level]
    text = (
        f"Job {job.name!r} is not read any more. It {was}: {reader_label(job, reader)} waited "
        f"{format_share(_wait_share(reader))} of its {format_duration(reader.active_ns / 1e9)}."
    )
    if level == "good":
        return level, text, ""
    remedy = "To see the cause next time, call svc.explain() while it is read, or svc.record(path) before."
    return level, f"{text}{_work_text(job)}", remedy


def _wait_share(reader: TrainerStatus) -> float:
    return reader.wait_ns / reader.active_ns


def _work_text(job: JobStatus) -> str:
    """Which operation took most of the work, as a sentence; empty if none did."""
    whole = sum(stage.busy_ns for stage in job.stages)
    most = max(job.stages, key=lambda stage: stage.busy_ns, default=None)
    if most is None or not whole or most.busy_ns < _NAMED_SHARE * whole:
        return ""
    each = f": {format_duration(most.busy_ns / 1e9 / most.elements)} for each element" if most.elements else ""
    return f" {most.name} took {format_share(most.busy_ns / whole)} of the work{each}."
