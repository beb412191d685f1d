"""Lays out the tables of `monitor/tables.py` in the panels, and the headings above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsnb.dashboard.markup import Html, tag
from dsnb.monitor.readers import has_name, reader_label, reader_name_parts
from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.monitor.tables import Cell, Column, Row, Table

TERMS = {
    "Splits": "A split is a piece of the source, such as a file or a range of indices. Workers get runs of splits to "
    "work on; a split is done when all trainers have consumed its elements.",
    "Pipeline": "Each operation's share of the time that the workers work. Threads and waiting elements are those of "
    "all workers together.",
    "Waiting": "How each trainer spends its time: in its own steps, or waiting in next() for what the workers do.",
    "Trainers": "A trainer is a reader with a name of its own in the cross-trainer cache; without the cache, each "
    "client is one.",
    "Workers": "Workers run pipelines and send elements to clients. A drained worker finishes what it has.",
    "Jobs": "A job is one dataset that is read through the service, by one or more clients.",
    "Events": "What happened to workers, jobs and trainers.",
}
"""What each panel's title means, as tooltips."""
_MAX_NAME_CHARS, _NAME_TAIL_CHARS = 12, 8
_ACTIONS = Column(field="do", title="", numeric=False)
Markup = Callable[[Cell], Html]
"""Builds the contents of a cell."""


def table(
    kind: str,
    content: Table,
    classes: Mapping[str, str],
    *,
    markup: Mapping[str, Markup] | None = None,
    actions: Callable[[str], Html] | None = None,
    row_classes: Callable[[str], str] | None = None,
) -> Html:
    """Build a table, in a box that scrolls sideways if the page is too narrow.

    Args:
        kind: What a row is about; scripts find the row of the trainer "a" as `data-trainer="a"`.
        content: The table.
        classes: CSS classes of columns, by field: "minor" is hidden on a narrow page, "rare" unless the page is wide,
            "desk" on a phone.
        markup: By field, the contents of cells that are not shown as plain text.
        actions: The buttons of a row, from its key.
        row_classes: The CSS classes of a row, from its key.
    """
    shown = {kind: _name, "state": _state, **(markup or {})}
    columns = (*content.columns, _ACTIONS) if actions else content.columns

    def row(one: Row) -> Html:
        cells = [_cell(column, cell, classes, shown) for column, cell in zip(content.columns, one.cells, strict=True)]
        if actions:
            cells.append(tag("td", actions(one.key), data_field=_ACTIONS.field, data_value=""))
        found_by = {f"data_{kind}": one.key}
        return tag("tr", *cells, class_=(row_classes and row_classes(one.key)) or None, data_key=one.key, **found_by)

    head = tag("tr", *(_title(column, classes) for column in columns))
    body = tag("tbody", *map(row, content.rows))
    return tag("div", tag("table", tag("thead", head), body), class_="scroll", tabindex="0")


def _name(cell: Cell) -> Html:
    return name_markup(cell.text)


def _state(cell: Cell) -> Html:
    return tag("span", cell.text, class_=f"chip {cell.text}")


def heading(title: str, hint: str = "", right: Html | None = None) -> Html:
    """A panel's heading: title, a hint about what it shows, and optional contents at the right."""
    return tag(
        "div",
        tag("h2", title, title=TERMS.get(title)),
        tag("p", hint, class_="hint") if hint else None,
        right,
        class_="heading",
    )


def name_markup(text: str, **attributes: object) -> Html:
    """A name that is shortened in the middle if space is short: related long names usually differ at the end."""
    there = {"title": text, **attributes}
    if len(text) <= _MAX_NAME_CHARS:
        return tag("b", tag("span", text), class_="name", **there)
    return tag(
        "b", tag("span", text[:-_NAME_TAIL_CHARS]), tag("span", text[-_NAME_TAIL_CHARS:]), class_="name", **there
    )


def reader_markup(job: JobStatus, trainer: TrainerStatus) -> Html:
    """A reader's name, or where it runs if it has none."""
    if has_name(job):
        return name_markup(trainer.trainer_id)
    name, rest = reader_name_parts(job, trainer)
    more = tag("span", rest, class_="unit") if rest else None
    return tag("b", tag("span", name), " " if rest else None, more, class_="place", title=reader_label(job, trainer))


def empty_message(text: str) -> Html:
    """The message of a panel that has nothing to show."""
    return tag("p", text, class_="empty")


def _title(column: Column, classes: Mapping[str, str]) -> Html:
    of_column = _column_classes(column, classes) or None
    return tag("th", column.title, title=column.meaning or None, class_=of_column, scope="col")


def _column_classes(column: Column, classes: Mapping[str, str]) -> str:
    return " ".join(filter(None, ("num" if column.numeric else "", classes.get(column.field))))


def _cell(column: Column, cell: Cell, classes: Mapping[str, str], markup: Mapping[str, Markup]) -> Html:
    inner: object = markup[column.field](cell) if column.field in markup else cell.text
    if cell.bar is not None:
        inner = tag("span", tag("i", style=f"width:{min(cell.bar, 1.0):.1%}"), tag("em", cell.text), class_="meter")
    return tag(
        "td",
        inner,
        class_=" ".join(filter(None, (_column_classes(column, classes), cell.level))) or None,
        data_field=column.field,
        data_value=cell.text if cell.value is None else cell.value,
        title=cell.title,
    )
