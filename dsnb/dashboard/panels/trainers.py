"""The trainers panel: what each trainer has read, found in the cache, missed and waited for."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.tables import empty_message, heading, name_markup, table
from dsnb.dashboard.view import View, colour_class
from dsnb.monitor.tables import Cell, trainer_table

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
    clients = {trainer.trainer_id: trainer.clients for trainer in job.trainers}
    return join(
        title,
        table(
            "trainer",
            trainer_table(job, COLUMNS, view.known_rates),
            COLUMNS,
            markup={"trainer": lambda cell: _name(cell, clients[cell.text])},
            row_classes=lambda name: colour_class(job, name),
        ),
    )


def _name(cell: Cell, clients: int) -> Html:
    gone = tag("span", " left", class_="chip") if not clients else None
    many = tag("span", f" ×{clients}", class_="unit") if clients > 1 else None
    return tag("span", tag("i", class_="dot"), name_markup(cell.text), many, gone, class_="who")
