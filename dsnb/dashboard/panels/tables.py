"""HTML tables for the panels: columns with a title, rows of cells with a field name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dsnb.dashboard.markup import Html, tag
from dsnb.monitor.formatting import format_duration

_MAX_NAME_CHARS, _NAME_TAIL_CHARS = 12, 8


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column.

    Attributes:
        title: The heading.
        meaning: The heading's tooltip.
        numeric: Whether it holds numbers, which are aligned right.
        hide_when_narrow: Whether to hide it on a narrow page.
        hide_unless_wide: Whether to hide it unless the page is wide.
        hide_on_phone: Whether to hide it on a phone.
    """

    title: str
    meaning: str = ""
    numeric: bool = True
    hide_when_narrow: bool = False
    hide_unless_wide: bool = False
    hide_on_phone: bool = False

    @property
    def classes(self) -> str:
        """The CSS classes of its cells."""
        wanted = {
            "num": self.numeric,
            "minor": self.hide_when_narrow,
            "rare": self.hide_unless_wide,
            "desk": self.hide_on_phone,
        }
        return " ".join(name for name, so in wanted.items() if so)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell.

    Attributes:
        field: The name under which tests and scripts find it.
        text: The displayed contents.
        value: The exact value; by default the text.
        level: "", "good", "warn" or "bad".
        bar: A fraction drawn as a bar behind the text; None for no bar.
    """

    field: str
    text: str | Html
    value: float | int | str | None = None
    level: str = ""
    bar: float | None = None
    title: str | None = None


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row: its cells, and the kind and id under which scripts find it, as in `data-trainer="lr=0.1"`."""

    kind: str
    key: str
    cells: Sequence[Cell]
    classes: str = ""


def table(columns: Sequence[Column], rows: Iterable[TableRow]) -> Html:
    """Build the table, in a box that scrolls sideways if the page is too narrow."""
    head = tag("tr", *(_title(column) for column in columns))
    body = (_row(row, columns) for row in rows)
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll", tabindex="0")


def heading(title: str, hint: str = "", right: Html | None = None) -> Html:
    """A panel's heading: title, a hint about what it shows, and optional contents at the right."""
    return tag("div", tag("h2", title), tag("p", hint, class_="hint") if hint else None, right, class_="heading")


def name_markup(text: str, **attributes: object) -> Html:
    """A name that is shortened in the middle if space is short: related long names usually differ at the end."""
    there = {"title": text, **attributes}
    if len(text) <= _MAX_NAME_CHARS:
        return tag("b", tag("span", text), class_="name", **there)
    return tag(
        "b", tag("span", text[:-_NAME_TAIL_CHARS]), tag("span", text[-_NAME_TAIL_CHARS:]), class_="name", **there
    )


def age_text(seconds: float) -> str:
    """An age as text; anything below one second counts as now."""
    return "now" if seconds < 1 else f"{format_duration(seconds)} ago"


def empty_message(text: str) -> Html:
    """The message of a panel that has nothing to show."""
    return tag("p", text, class_="empty")


def _title(column: Column) -> Html:
    return tag("th", column.title, title=column.meaning or None, class_=column.classes or None, scope="col")


def _row(row: TableRow, columns: Sequence[Column]) -> Html:
    cells = (_cell(cell, column) for cell, column in zip(row.cells, columns, strict=True))
    found_by = {f"data_{row.kind}": row.key}
    return tag("tr", *cells, class_=row.classes or None, data_key=row.key, **found_by)


def _cell(cell: Cell, column: Column) -> Html:
    inner = cell.text
    if cell.bar is not None:
        inner = tag("span", tag("i", style=f"width:{min(cell.bar, 1.0):.1%}"), tag("em", cell.text), class_="meter")
    return tag(
        "td",
        inner,
        class_=" ".join(filter(None, (column.classes, cell.level))) or None,
        data_field=cell.field,
        data_value=cell.text if cell.value is None else cell.value,
        title=cell.title,
    )
