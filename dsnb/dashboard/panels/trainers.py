"""The trainers panel: what each trainer has read, found in the cache, missed and waited for."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.tables import Cell, Column, TableRow, empty_message, heading, name_markup, table
from dsnb.dashboard.view import View, colour_class
from dsnb.monitor.formatting import format_count, format_share, wait_level
from dsnb.monitor.rates import TrainerRates, trainer_rates
from dsnb.monitor.snapshot import JobStatus, TrainerStatus

COLUMNS = (
    Column(title="trainer", meaning="the id given in CrossTrainerCache, else the client's own", numeric=False),
    Column(title="elements", meaning="consumed so far"),
    Column(title="per s", meaning="consumed each second", hide_when_narrow=True),
    Column(title="waits", meaning="share of its time spent waiting in next()"),
    Column(
        title="offset",
        meaning="first element not consumed, summed over tasks",
        hide_when_narrow=True,
        hide_unless_wide=True,
    ),
    Column(title="lag", meaning="produced and not consumed, summed over tasks", hide_on_phone=True),
    Column(title="hits", meaning="lay in the cache because another trainer had asked first", hide_when_narrow=True),
    Column(title="misses", meaning="were produced for this trainer", hide_when_narrow=True, hide_unless_wide=True),
    Column(title="skipped", meaning="left the window before this trainer came to them"),
)


def trainers(view: View) -> Html:
    job = view.job
    title = heading("Trainers", "who reads, and how well it is served")
    if job is None or not job.trainers:
        return join(title, empty_message("Nobody has read yet." if job else "No job yet."))
    return join(title, table(COLUMNS, [row(view, job, trainer) for trainer in job.trainers]))


def row(view: View, job: JobStatus, trainer: TrainerStatus) -> TableRow:
    """Build the table row of one trainer."""
    rates = trainer_rates(view.job_rates, trainer.trainer_id)
    offset = sum(cursor.offset for cursor in trainer.cursors)
    cells = (
        _name(trainer),
        Cell(field="elements", text=format_count(trainer.elements), value=trainer.elements),
        Cell(field="rate", text=view.format_rate(rates.consumed), value=round(rates.consumed, 1)),
        _wait(rates, trainer),
        Cell(field="offset", text=format_count(offset), value=offset),
        Cell(field="lag", text=format_count(trainer.lag), value=trainer.lag),
        Cell(field="hits", text=format_count(trainer.hits), value=trainer.hits),
        Cell(field="misses", text=format_count(trainer.misses), value=trainer.misses),
        _skipped(trainer, rates),
    )
    return TableRow(kind="trainer", key=trainer.trainer_id, cells=cells, classes=colour_class(job, trainer.trainer_id))


def _name(trainer: TrainerStatus) -> Cell:
    gone = tag("span", " left", class_="chip") if not trainer.clients else None
    many = tag("span", f" ×{trainer.clients}", class_="unit") if trainer.clients > 1 else None
    text = tag("span", tag("i", class_="dot"), name_markup(trainer.trainer_id), many, gone, class_="who")
    return Cell(field="trainer", text=text, value=trainer.trainer_id, title=trainer.trainer_id)


def _wait(rates: TrainerRates, trainer: TrainerStatus) -> Cell:
    """The wait share of the last seconds; for a trainer that is not reading, of its whole time, without a level."""
    now = rates.wait_share
    if now is None:
        ever = min(1.0, trainer.wait_ns / trainer.active_ns) if trainer.active_ns else None
        return Cell(
            field="wait", text=format_share(ever), value=round(ever or 0.0, 3), bar=ever, title="over all its time"
        )
    return Cell(
        field="wait",
        text=format_share(now),
        value=round(now, 3),
        level=wait_level(now),
        bar=now,
        title="of the last seconds",
    )


def _skipped(trainer: TrainerStatus, rates: TrainerRates) -> Cell:
    level = "bad" if rates.skipped > 0 else "warn" if trainer.skipped else ""
    lost = f"and {format_count(trainer.lost)} lost with a worker" if trainer.lost else None
    text = format_count(trainer.skipped) + (f" + {format_count(trainer.lost)} lost" if trainer.lost else "")
    return Cell(field="skipped", text=text, value=trainer.skipped, level=level, title=lost)
