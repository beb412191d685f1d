"""The answer to the button "peek": the newest elements of a job, in words and small pictures, until it is closed."""

from __future__ import annotations

import base64

from dsnb.dashboard.control_requests import Outcome
from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.buttons import button, buttons
from dsnb.dashboard.panels.tables import empty_message, heading
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import as_sentence, format_count
from dsnb.monitor.peek import PeekedJob
from dsnb.wire.messages import ElementPreview, LeafPreview

_COLUMNS = ("leaf", "shape", "dtype", "values", "")


def peek(view: View) -> Html:
    outcome = view.control.peek
    if outcome is None:
        return Html("")
    job = outcome.request.names["job"]
    close = tag("button", "close", type="button", class_="act", title="close the peek", data_pick="close-peek")
    again = button(view, "peek", "peek again", job=job)
    found = outcome.peeked
    hint = f"the newest of worker {found.worker}" if found and found.elements else ""
    title = heading(f"Elements of {job}", hint, buttons(again, close))
    return tag("div", title, _answer(outcome), class_="peek", data_state=outcome.state)


def _answer(outcome: Outcome) -> Html:
    if outcome.state == "pending":
        return empty_message("The worker is asked …")
    if outcome.peeked is None:
        return empty_message(outcome.text)
    if not outcome.peeked.elements:
        return empty_message(_nothing_kept(outcome.peeked))
    return tag("div", *map(_element, outcome.peeked.elements), class_="seen", tabindex="0")


def _nothing_kept(found: PeekedJob) -> str:
    return (
        f"Worker {found.worker} keeps no element of {found.job}: trainers have consumed all that it produced, and "
        "none came within two seconds."
    )


def _element(element: ElementPreview) -> Html:
    title = tag("h3", f"element {format_count(element.index)}")
    if element.error:
        return join(title, empty_message(as_sentence(element.error)))
    head = tag("tr", *(tag("th", name, scope="col") for name in _COLUMNS))
    rows = tag("tbody", *map(_row, element.leaves))
    more = f"{element.more_leaves} more leaves are not shown." if element.more_leaves else ""
    return join(title, tag("table", tag("thead", head), rows), empty_message(more) if more else None)


def _row(leaf: LeafPreview) -> Html:
    texts = (leaf.path or "–", leaf.shape, leaf.dtype, leaf.values)
    return tag("tr", *(tag("td", text) for text in texts), tag("td", _image(leaf)))


def _image(leaf: LeafPreview) -> Html | None:
    if not leaf.thumbnail:
        return None
    png = base64.b64encode(leaf.thumbnail).decode()
    return tag("img", alt=f"thumbnail of {leaf.path or 'the element'}", src=f"data:image/png;base64,{png}")
