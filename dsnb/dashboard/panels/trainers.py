"""The trainers panel: what each trainer has read, found in the cache, missed and waited for."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.tables import empty_message, heading, reader_markup, table
from dsnb.dashboard.view import View
from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.monitor.tables import trainer_table

COLUMNS = {
    "trainer": "",
    "elements": "",
    "rate": "minor",
    "wait": "",
    "offset": "minor rare",
    "lag": "desk",
    "hits": "minor",
    "misses": "minor rare",
    "skipped_and_lost": "",
}
"""The columns by field, with their CSS classes."""


def trainers(view: View) -> Html:
    job = view.job
    title = heading("Trainers", "progress, waiting time and cache use of each trainer")
    if job is None or not job.trainers:
        return join(title, empty_message("No trainer has read this job yet." if job else "No job yet."))
    known = {trainer.trainer_id: trainer for trainer in job.trainers}
    return join(
        title,
        table(
            "trainer",
            trainer_table(job, COLUMNS, view.known_rates),
            COLUMNS,
            markup={"trainer": lambda cell: _name(job, known[cell.text if cell.value is None else str(cell.value)])},
            row_classes=view.colour_class,
        ),
    )


def _name(job: JobStatus, trainer: TrainerStatus) -> Html:
    many = tag("span", f" ×{trainer.clients}", class_="unit") if trainer.clients > 1 else None
    return tag("span", tag("i", class_="dot"), reader_markup(job, trainer), many, _state(trainer), class_="who")


def _state(trainer: TrainerStatus) -> Html | None:
    if trainer.evicted_by:
        return tag("span", " evicted", class_="chip", title=f"evicted by {trainer.evicted_by}")
    return tag("span", " left", class_="chip") if not trainer.clients else None
