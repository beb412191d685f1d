"""The workers panel: how busy they are, what they produce and send, how full their windows are."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join
from dsnb.dashboard.panels.buttons import button, buttons
from dsnb.dashboard.panels.tables import empty_message, heading, table
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import natural_sort_key
from dsnb.monitor.tables import worker_table

COLUMNS = {
    "worker": "",
    "state": "",
    "busy": "",
    "produced": "minor",
    "rate": "desk",
    "sent_bytes": "minor rare",
    "cache_bytes": "desk",
    "tasks": "minor rare",
    "errors": "minor",
    "heard": "desk",
}
"""The columns by field, with their CSS classes."""


def workers(view: View) -> Html:
    title = heading("Workers", "the processes and threads that run pipelines", _scale(view))
    found = view.snapshot.workers if view.snapshot else ()
    if not found:
        return join(
            title, empty_message("No workers: svc.scale(2) starts two." if view.snapshot else "No service yet.")
        )
    ordered = sorted(found, key=lambda worker: natural_sort_key(worker.name))
    running = {worker.name for worker in found if worker.state == "running"}
    return join(
        title,
        table(
            "worker",
            worker_table(ordered, COLUMNS, view.known_rates),
            COLUMNS,
            actions=lambda name: _buttons(view, name, running=name in running),
        ),
    )


def _scale(view: View) -> Html | None:
    """Buttons for one worker more or less; None unless the service starts its workers itself."""
    if view.snapshot is None or not view.snapshot.scalable:
        return None
    running = sum(worker.state == "running" for worker in view.snapshot.workers)
    less = button(view, "scale", "− worker", workers=str(running - 1)) if running else None
    return buttons(less, button(view, "scale", "+ worker", workers=str(running + 1)))


def _buttons(view: View, name: str, *, running: bool) -> Html:
    drain = button(view, "drain", "drain", worker=name) if running else None
    return buttons(drain, button(view, "remove", "remove", worker=name))
