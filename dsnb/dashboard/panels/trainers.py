"""The trainers of the job, with what each has read, found, missed and waited for."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.tables import Cell, Column, TableRow, empty, heading, name, table
from dsnb.dashboard.view import View, colour
from dsnb.monitor.rates import TrainerRates, trainer_rates
from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.monitor.words import count, level_of, share

COLUMNS = (
    Column(title="trainer", meaning="the id given in CrossTrainerCache, else the client's own", number=False),
    Column(title="elements", meaning="consumed so far"),
    Column(title="per s", meaning="consumed each second", minor=True),
    Column(title="waits", meaning="share of its time spent waiting in next()"),
    Column(title="offset", meaning="first element not consumed, summed over tasks", minor=True, rare=True),
    Column(title="lag", meaning="produced and not consumed, summed over tasks", desk=True),
    Column(title="hits", meaning="lay in the cache because another trainer had asked first", minor=True),
    Column(title="misses", meaning="were produced for this trainer", minor=True, rare=True),
    Column(title="skipped", meaning="left the window before this trainer came to them"),
)


def trainers(view: View) -> Html:
    """The panel."""
    job = view.job
    title = heading("Trainers", "who reads, and how well it is served")
    if job is None or not job.trainers:
        return join(title, empty("Nobody has read yet." if job else "No job yet."))
    return join(title, table(COLUMNS, [row(view, job, trainer) for trainer in job.trainers]))


def row(view: View, job: JobStatus, trainer: TrainerStatus) -> TableRow:
    """One trainer's row."""
    rates = trainer_rates(view.job_rates, trainer.trainer_id)
    offset = sum(place.offset for place in trainer.places)
    cells = (
        _name(trainer),
        Cell(field="elements", text=count(trainer.elements), value=trainer.elements),
        Cell(field="rate", text=view.per_s(rates.consumed), value=round(rates.consumed, 1)),
        _wait(rates, trainer),
        Cell(field="offset", text=count(offset), value=offset),
        Cell(field="lag", text=count(trainer.lag), value=trainer.lag),
        Cell(field="hits", text=count(trainer.hits), value=trainer.hits),
        Cell(field="misses", text=count(trainer.misses), value=trainer.misses),
        _skipped(trainer, rates),
    )
    return TableRow(kind="trainer", key=trainer.trainer_id, cells=cells, classes=colour(job, trainer.trainer_id))


def _name(trainer: TrainerStatus) -> Cell:
    gone = tag("span", " left", class_="chip") if not trainer.clients else None
    many = tag("span", f" ×{trainer.clients}", class_="unit") if trainer.clients > 1 else None
    text = tag("span", tag("i", class_="dot"), name(trainer.trainer_id), many, gone, class_="who")
    return Cell(field="trainer", text=text, value=trainer.trainer_id, title=trainer.trainer_id)


def _wait(rates: TrainerRates, trainer: TrainerStatus) -> Cell:
    """The share of the last seconds; of a trainer that does not read now, of all its time, without a verdict."""
    now = rates.wait_share
    if now is None:
        ever = min(1.0, trainer.wait_ns / trainer.active_ns) if trainer.active_ns else None
        return Cell(field="wait", text=share(ever), value=round(ever or 0.0, 3), bar=ever, title="over all its time")
    return Cell(
        field="wait", text=share(now), value=round(now, 3), level=level_of(now), bar=now, title="of the last seconds"
    )


def _skipped(trainer: TrainerStatus, rates: TrainerRates) -> Cell:
    level = "bad" if rates.skipped > 0 else "warn" if trainer.skipped else ""
    lost = f"and {count(trainer.lost)} lost with a worker" if trainer.lost else None
    text = count(trainer.skipped) + (f" + {count(trainer.lost)} lost" if trainer.lost else "")
    return Cell(field="skipped", text=text, value=trainer.skipped, level=level, title=lost)
