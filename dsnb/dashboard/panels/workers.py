"""The workers panel: how busy they are, what they produce and send, how full their windows are."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.buttons import button, buttons
from dsnb.dashboard.panels.tables import Cell, Column, TableRow, age_text, empty_message, heading, name_markup, table
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_bytes, format_count, format_share, natural_sort_key
from dsnb.monitor.snapshot import WorkerStatus

COLUMNS = (
    Column(title="worker", meaning="in the order of arrival", numeric=False),
    Column(title="state", numeric=False),
    Column(title="busy", meaning="seconds of pipeline work each second, over all its tasks"),
    Column(title="produced", meaning="elements produced, over all jobs", hide_when_narrow=True),
    Column(title="per s", meaning="elements produced each second", hide_on_phone=True),
    Column(title="sent", meaning="bytes handed to readers", hide_when_narrow=True, hide_unless_wide=True),
    Column(title="window", meaning="bytes of elements held now, of what it may hold", hide_on_phone=True),
    Column(title="tasks", hide_when_narrow=True, hide_unless_wide=True),
    Column(title="errors", meaning="elements whose place is taken by an error", hide_when_narrow=True),
    Column(title="heard", meaning="age of its last report", hide_on_phone=True),
    Column(title=""),
)
STALE_HEARTBEAT_S = 5.0


def workers(view: View) -> Html:
    title = heading("Workers", "who runs the pipelines", _scale(view))
    found = view.snapshot.workers if view.snapshot else ()
    if not found:
        return join(title, empty_message("No worker: svc.scale(2) adds two." if view.snapshot else "No service yet."))
    return join(
        title,
        table(
            COLUMNS, [row(view, worker) for worker in sorted(found, key=lambda worker: natural_sort_key(worker.name))]
        ),
    )


def row(view: View, worker: WorkerStatus) -> TableRow:
    """Build the table row of one worker."""
    rates = view.rates.worker(worker.uid)
    late = worker.heartbeat_age_s > STALE_HEARTBEAT_S
    cells = (
        Cell(
            field="worker",
            text=name_markup(worker.name),
            value=worker.name,
            title=f"{worker.isolation}, {worker.address}",
        ),
        Cell(field="state", text=tag("span", worker.state, class_=f"chip {worker.state}"), value=worker.state),
        Cell(
            field="busy",
            text=format_share(rates.busy) if view.measured else "–",
            value=round(rates.busy, 3),
            bar=rates.busy,
        ),
        Cell(field="produced", text=format_count(worker.produced), value=worker.produced),
        Cell(field="rate", text=view.format_rate(rates.produced), value=round(rates.produced, 1)),
        Cell(
            field="sent_bytes",
            text=format_bytes(worker.sent_bytes),
            value=worker.sent_bytes,
            title=_sent(rates.sent_bytes),
        ),
        _window(worker),
        Cell(field="tasks", text=format_count(worker.tasks), value=worker.tasks),
        Cell(
            field="errors", text=format_count(worker.errors), value=worker.errors, level="bad" if worker.errors else ""
        ),
        Cell(field="heard", text=age_text(worker.heartbeat_age_s), level="bad" if late else ""),
        Cell(field="do", text=_buttons(view, worker), value=""),
    )
    return TableRow(kind="worker", key=worker.name, cells=cells)


def _scale(view: View) -> Html | None:
    """Buttons for one worker more or less; None unless the service starts its workers itself."""
    if view.snapshot is None or not view.snapshot.scalable:
        return None
    running = sum(worker.state == "running" for worker in view.snapshot.workers)
    less = button(view, "scale", "− worker", workers=str(running - 1)) if running else None
    return buttons(less, button(view, "scale", "+ worker", workers=str(running + 1)))


def _buttons(view: View, worker: WorkerStatus) -> Html:
    drain = button(view, "drain", "drain", worker=worker.name) if worker.state == "running" else None
    return buttons(drain, button(view, "remove", "remove", worker=worker.name))


def _sent(per_second: float) -> str:
    return f"{format_bytes(per_second)} each second"


def _window(worker: WorkerStatus) -> Cell:
    full = worker.cache_bytes / worker.capacity_bytes if worker.capacity_bytes else None
    of = f"of {format_bytes(worker.capacity_bytes)}" if worker.capacity_bytes else None
    return Cell(
        field="cache_bytes", text=format_bytes(worker.cache_bytes), value=worker.cache_bytes, bar=full, title=of
    )
