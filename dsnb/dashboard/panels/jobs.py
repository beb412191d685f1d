"""All jobs of the service, the newest first."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.controls import button, buttons
from dsnb.dashboard.panels.tables import Cell, Column, TableRow, empty, heading, name, table
from dsnb.dashboard.view import View
from dsnb.monitor.snapshot import JobStatus
from dsnb.monitor.words import count

COLUMNS = (
    Column(title="job", number=False),
    Column(title="state", number=False),
    Column(title="mode", number=False, minor=True),
    Column(title="pass", meaning="1 is the first pass over the data", minor=True),
    Column(title="clients", meaning="iterators that read now", minor=True, rare=True),
    Column(title="produced", meaning="elements produced, over all passes", desk=True),
    Column(title="consumed", meaning="elements consumed by all readers", desk=True),
    Column(title="per s", meaning="elements produced each second", minor=True),
    Column(title=""),
)
MOST = 20


def jobs(view: View) -> Html:
    """The panel."""
    found = view.snapshot.jobs if view.snapshot else ()
    there = view.snapshot.job_count if view.snapshot else 0
    hint = f"the newest {MOST} of {count(there)}" if there > MOST else "what is read from this service"
    title = heading("Jobs", hint)
    if not found:
        return join(title, empty("No job yet: apply dsnb.distribute to a Dataset and iterate it."))
    return join(title, table(COLUMNS, [row(view, job) for job in found[-1 : -MOST - 1 : -1]]), _pipeline(view.job))


def row(view: View, job: JobStatus) -> TableRow:
    """One job's row."""
    rates = view.rates.job(job.name)
    shown = view.job is not None and view.job.name == job.name
    cells = (
        Cell(field="job", text=name(job.name), value=job.name, title=job.pipeline),
        Cell(field="state", text=tag("span", job.state, class_=f"chip {job.state}"), value=job.state, title=_who(job)),
        Cell(field="mode", text=job.mode),
        Cell(field="pass", text=count(job.iteration + 1), value=job.iteration + 1),
        Cell(field="clients", text=count(job.clients), value=job.clients),
        Cell(field="produced", text=count(job.produced), value=job.produced),
        Cell(field="consumed", text=count(job.consumed), value=job.consumed),
        Cell(field="rate", text=view.per_s(rates.produced), value=round(rates.produced, 1)),
        Cell(field="do", text=_buttons(view, job), value=""),
    )
    return TableRow(kind="job", key=job.name, cells=cells, classes="shown" if shown else "")


def _who(job: JobStatus) -> str | None:
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
