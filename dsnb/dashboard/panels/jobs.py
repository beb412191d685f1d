"""The jobs panel: all jobs of the service, the newest first."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.buttons import button, buttons
from dsnb.dashboard.panels.tables import Cell, Column, TableRow, empty_message, heading, name_markup, table
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_count
from dsnb.monitor.snapshot import JobStatus

COLUMNS = (
    Column(title="job", numeric=False),
    Column(title="state", numeric=False),
    Column(title="mode", numeric=False, hide_when_narrow=True),
    Column(title="pass", meaning="1 is the first pass over the data", hide_when_narrow=True),
    Column(title="clients", meaning="iterators that read now", hide_when_narrow=True, hide_unless_wide=True),
    Column(title="produced", meaning="elements produced, over all passes", hide_on_phone=True),
    Column(title="consumed", meaning="elements consumed by all readers", hide_on_phone=True),
    Column(title="per s", meaning="elements produced each second", hide_when_narrow=True),
    Column(title=""),
)
MAX_JOBS = 20


def jobs(view: View) -> Html:
    found = view.snapshot.jobs if view.snapshot else ()
    total = view.snapshot.job_count if view.snapshot else 0
    hint = f"the newest {MAX_JOBS} of {format_count(total)}" if total > MAX_JOBS else "what is read from this service"
    title = heading("Jobs", hint)
    if not found:
        return join(title, empty_message("No job yet: apply dsnb.distribute to a Dataset and iterate it."))
    return join(title, table(COLUMNS, [row(view, job) for job in found[-1 : -MAX_JOBS - 1 : -1]]), _pipeline(view.job))


def row(view: View, job: JobStatus) -> TableRow:
    """Build the table row of one job."""
    rates = view.rates.job(job.name)
    shown = view.job is not None and view.job.name == job.name
    cells = (
        Cell(field="job", text=name_markup(job.name), value=job.name, title=job.pipeline),
        Cell(
            field="state",
            text=tag("span", job.state, class_=f"chip {job.state}"),
            value=job.state,
            title=_paused_by(job),
        ),
        Cell(field="mode", text=job.mode),
        Cell(field="pass", text=format_count(job.iteration + 1), value=job.iteration + 1),
        Cell(field="clients", text=format_count(job.clients), value=job.clients),
        Cell(field="produced", text=format_count(job.produced), value=job.produced),
        Cell(field="consumed", text=format_count(job.consumed), value=job.consumed),
        Cell(field="rate", text=view.format_rate(rates.produced), value=round(rates.produced, 1)),
        Cell(field="do", text=_buttons(view, job), value=""),
    )
    return TableRow(kind="job", key=job.name, cells=cells, classes="shown" if shown else "")


def _paused_by(job: JobStatus) -> str | None:
    return f"paused by {job.paused_by}" if job.paused_by else None


def _buttons(view: View, job: JobStatus) -> Html:
    running = button(view, "pause", "pause", job=job.name) if job.state in {"running", "idle"} else None
    paused = button(view, "resume", "resume", job=job.name) if job.state == "paused" else None
    return buttons(running, paused, button(view, "cancel", "cancel", job=job.name))


def _pipeline(job: JobStatus | None) -> Html | None:
    if job is None or not job.pipeline:
        return None
    steps = [step for part in job.pipeline.split(" | ") for step in (tag("span", "›"), tag("code", part))]
    return tag("p", tag("b", job.name), *steps, class_="pipeline", data_field="pipeline")
