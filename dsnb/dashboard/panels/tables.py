"""A table of numbers, the same for trainers, workers, jobs and stages: columns with a title, cells with a field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsnb.dashboard.markup import Html, tag
from dsnb.dataclass import dataclass
from dsnb.monitor.formatting import format_duration

_MAX_NAME_CHARS, _NAME_TAIL_CHARS = 12, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        meaning: What the heading's tooltip says.
        numeric: Whether it holds numbers: those stand right.
        hide_when_narrow: Whether a narrow page goes without it.
        hide_unless_wide: Whether a page that is not wide goes without it.
        hide_on_phone: Whether a phone goes without it.
    """

    title: str
    meaning: str = ""
    numeric: bool = True
    hide_when_narrow: bool = False
    hide_unless_wide: bool = False
    hide_on_phone: bool = False

    @property
    def classes(self) -> str:
        """The style classes of its cells."""
        wanted = {
            "num": self.numeric,
            "minor": self.hide_when_narrow,
            "rare": self.hide_unless_wide,
            "desk": self.hide_on_phone,
        }
        return " ".join(name for name, so in wanted.items() if so)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell.

    Attributes:
        field: The name under which tests and scripts find it.
        text: What is read.
        value: The exact value; the text if left out.
        level: "", "good", "warn" or "bad".
        bar: A part of one, drawn behind the text.
    """

    field: str
    text: str | Html
    value: float | int | str | None = None
    level: str = ""
    bar: float | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row: the kind and id under which it is found (`data-trainer="lr=0.1"`), and its cells."""

    kind: str
    key: str
    cells: Sequence[Cell]
    classes: str = ""


def table(columns: Sequence[Column], rows: Iterable[TableRow]) -> Html:
    """The table, in a box that scrolls by itself where the page is narrower than it."""
    head = tag("tr", *(_title(column) for column in columns))
    body = (_row(row, columns) for row in rows)
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll", tabindex="0")


def heading(title: str, hint: str = "", right: Html | None = None) -> Html:
    """A panel's title, a line of what it shows, and what stands at its right."""
    return tag("div", tag("h2", title), tag("p", hint, class_="hint") if hint else None, right, class_="heading")


def name_markup(text: str, **attributes: object) -> Html:
    """A name that a narrow place cuts in its middle: long names of one family differ at their end."""
    there = {"title": text, **attributes}
    if len(text) <= _MAX_NAME_CHARS:
        return tag("b", tag("span", text), class_="name", **there)
    return tag(
        "b", tag("span", text[:-_NAME_TAIL_CHARS]), tag("span", text[-_NAME_TAIL_CHARS:]), class_="name", **there
    )


def age_text(seconds: float) -> str:
    """How long ago; what is less than a second old is new."""
    return "now" if seconds < 1 else f"{format_duration(seconds)} ago"


def empty_message(text: str) -> Html:
    """What a panel says while there is nothing to show."""
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
