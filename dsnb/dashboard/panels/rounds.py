"""The rounds panel of a coordinated read: the round of each consumer, and which consumers the next round waits for."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.tables import heading, table
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_count, plural
from dsnb.monitor.readers import origin_text
from dsnb.monitor.snapshot import ConsumerStatus, JobStatus, RoundsStatus
from dsnb.monitor.tables import Cell, Column, Row, Table, age_text
from dsnb.wire.schedule import consumer_name

COLUMNS = (
    Column(field="consumer", title="consumer", meaning="its index", numeric=False),
    Column(field="state", title="state", numeric=False),
    Column(field="round", title="round", meaning="the next round that it will take"),
    Column(field="since", title="since", meaning="time since it took a round, joined or left"),
)
_CHIPS = {"reading": "running", "joining": "draining"}


def rounds(view: View) -> Html:
    """The panel; empty for a job that is not a coordinated read."""
    found = view.job.rounds if view.job else None
    if view.job is None or found is None:
        return Html("")
    title = heading("Rounds", "a coordinated read: each consumer takes its part of every round")
    consumers = sorted(found.consumers, key=lambda consumer: consumer.index)
    content = Table(columns=COLUMNS, rows=tuple(_row(view.job, found, consumer) for consumer in consumers))
    return join(title, _current_round(found), table("consumer", content, {}, markup={"state": _state}))


def _state(cell: Cell) -> Html:
    return tag("span", cell.text, class_=f"chip {_CHIPS.get(cell.text, '')}")


def _current_round(found: RoundsStatus) -> Html:
    held = f"waits for {found.waits_for}" if found.waits_for else "all consumers are present"
    words = "paused until the consumers agree on the workers of the next rounds" if found.halted else held
    dropped = tag("span", plural(found.dropped, "round"), " dropped", class_="key lost") if found.dropped else None
    return tag(
        "div",
        tag("b", "round ", number(format_count(found.round), "round", found.round)),
        tag("span", words, class_="hint", data_field="waits-for"),
        dropped,
        class_="over",
    )


def _row(job: JobStatus, found: RoundsStatus, consumer: ConsumerStatus) -> Row:
    behind = consumer.round == found.round and bool(found.waits_for)
    cells = (
        Cell(text=str(consumer.index), value=consumer.index, title=_place(job, consumer)),
        Cell(text=consumer.state),
        Cell(text=format_count(consumer.round), value=consumer.round, level="warn" if behind else ""),
        Cell(text=age_text(consumer.last_change_age_s), value=round(consumer.last_change_age_s, 1)),
    )
    return Row(key=str(consumer.index), cells=cells)


def _place(job: JobStatus, consumer: ConsumerStatus) -> str | None:
    trainer = job.trainer(consumer_name(consumer.index))
    return origin_text(trainer.origin) if trainer is not None and trainer.origin is not None else None
