"""The jobs panel: all jobs of the service, running ones and then the newest first."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.buttons import button, buttons
from dsnb.dashboard.panels.tables import empty_message, heading, table
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_count
from dsnb.monitor.snapshot import JobStatus
from dsnb.monitor.tables import job_table, running_first

COLUMNS = {
    "job": "",
    "state": "",
    "mode": "minor rare",
    "pass": "minor",
    "clients": "minor rare",
    "produced": "desk",
    "consumed": "desk",
    "rate": "minor",
}
"""The columns by field, with their CSS classes."""
MAX_JOBS = 20


def jobs(view: View) -> Html:
    found = view.snapshot.jobs if view.snapshot else ()
    total = view.snapshot.job_count if view.snapshot else 0
    hint = f"the newest {MAX_JOBS} of {format_count(total)}" if total > MAX_JOBS else "all jobs of this service"
    title = heading("Jobs", hint)
    if not found:
        return join(title, empty_message("No job yet: apply dsnb.distribute to a Dataset and iterate it."))
    newest = running_first(reversed(found))[:MAX_JOBS]
    states = {job.name: job.state for job in newest}
    shown = view.job.name if view.job else None
    content = table(
        "job",
        job_table(newest, COLUMNS, view.known_rates),
        COLUMNS,
        actions=lambda name: _buttons(view, name, states[name]),
        row_classes=lambda name: _row_classes(states[name], is_shown=name == shown),
    )
    return join(title, content, _pipeline(view.job), _receipt(view.job))


def _row_classes(state: str, *, is_shown: bool) -> str:
    return " ".join(name for name, so in (("shown", is_shown), ("ended", state == "finished")) if so)


def _buttons(view: View, name: str, state: str) -> Html:
    peek = button(view, "peek", "peek", job=name) if state in {"running", "paused"} else None
    running = button(view, "pause", "pause", job=name) if state in {"running", "idle"} else None
    paused = button(view, "resume", "resume", job=name) if state == "paused" else None
    cancel = button(view, "cancel", "cancel", job=name) if state != "finished" else None
    return buttons(peek, running, paused, cancel)


def _pipeline(job: JobStatus | None) -> Html | None:
    if job is None or not job.pipeline:
        return None
    steps = [step for part in job.pipeline.split(" | ") for step in (tag("span", "›"), tag("code", part))]
    return tag("p", tag("b", job.name), *steps, class_="pipeline", data_field="pipeline")


def _receipt(job: JobStatus | None) -> Html | None:
    if job is None or not job.receipt:
        return None
    return tag("p", job.receipt, class_="soft", data_field="receipt")
