"""The workers: how busy, what they make and send, what their windows hold."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.controls import button, buttons
from dsnb.dashboard.panels.tables import Cell, Column, TableRow, age, empty, heading, name, table
from dsnb.dashboard.view import View
from dsnb.monitor.snapshot import WorkerStatus
from dsnb.monitor.words import by_number, count, share, size

COLUMNS = (
    Column(title="worker", meaning="in the order of arrival", number=False),
    Column(title="state", number=False),
    Column(title="busy", meaning="seconds of pipeline work each second, over all its tasks"),
    Column(title="produced", meaning="elements produced, over all jobs", minor=True),
    Column(title="per s", meaning="elements produced each second", desk=True),
    Column(title="sent", meaning="bytes handed to readers", minor=True, rare=True),
    Column(title="window", meaning="bytes of elements held now, of what it may hold", desk=True),
    Column(title="tasks", minor=True, rare=True),
    Column(title="errors", meaning="elements whose place is taken by an error", minor=True),
    Column(title="heard", meaning="age of its last report", desk=True),
    Column(title=""),
)
LATE_S = 5.0


def workers(view: View) -> Html:
    """The panel."""
    title = heading("Workers", "who runs the pipelines", _scale(view))
    found = view.snapshot.workers if view.snapshot else ()
    if not found:
        return join(title, empty("No worker: svc.scale(2) adds two." if view.snapshot else "No service yet."))
    return join(
        title,
        table(COLUMNS, [row(view, worker) for worker in sorted(found, key=lambda worker: by_number(worker.name))]),
    )


def row(view: View, worker: WorkerStatus) -> TableRow:
    """One worker's row."""
    rates = view.rates.worker(worker.uid)
    late = worker.heartbeat_age_s > LATE_S
    cells = (
        Cell(field="worker", text=name(worker.name), value=worker.name, title=f"{worker.isolation}, {worker.address}"),
        Cell(field="state", text=tag("span", worker.state, class_=f"chip {worker.state}"), value=worker.state),
        Cell(
            field="busy", text=share(rates.busy) if view.measured else "–", value=round(rates.busy, 3), bar=rates.busy
        ),
        Cell(field="produced", text=count(worker.produced), value=worker.produced),
        Cell(field="rate", text=view.per_s(rates.produced), value=round(rates.produced, 1)),
        Cell(field="sent_bytes", text=size(worker.sent_bytes), value=worker.sent_bytes, title=_sent(rates.sent_bytes)),
        _window(worker),
        Cell(field="tasks", text=count(worker.tasks), value=worker.tasks),
        Cell(field="errors", text=count(worker.errors), value=worker.errors, level="bad" if worker.errors else ""),
        Cell(field="heard", text=age(worker.heartbeat_age_s), level="bad" if late else ""),
        Cell(field="do", text=_buttons(view, worker), value=""),
    )
    return TableRow(kind="worker", key=worker.name, cells=cells)


def _scale(view: View) -> Html | None:
    """One more or one less, where the service starts its workers itself."""
    if view.snapshot is None or not view.snapshot.scalable:
        return None
    there = sum(worker.state == "running" for worker in view.snapshot.workers)
    less = button(view, "scale", "− worker", workers=str(there - 1)) if there else None
    return buttons(less, button(view, "scale", "+ worker", workers=str(there + 1)))


def _buttons(view: View, worker: WorkerStatus) -> Html:
    drain = button(view, "drain", "drain", worker=worker.name) if worker.state == "running" else None
    return buttons(drain, button(view, "remove", "remove", worker=worker.name))


def _sent(per_second: float) -> str:
    return f"{size(per_second)} each second"


def _window(worker: WorkerStatus) -> Cell:
    full = worker.cache_bytes / worker.capacity_bytes if worker.capacity_bytes else None
    of = f"of {size(worker.capacity_bytes)}" if worker.capacity_bytes else None
    return Cell(field="cache_bytes", text=size(worker.cache_bytes), value=worker.cache_bytes, bar=full, title=of)
