"""The events panel: recent events, the newest first."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.tables import empty_message, heading
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_time
from dsnb.monitor.snapshot import EventStatus

MAX_EVENTS = 40


def events(view: View) -> Html:
    title = heading("Events", "the newest on top")
    found = view.snapshot.events if view.snapshot else ()
    if not found:
        return join(title, empty_message("Nothing has happened yet."))
    return join(title, tag("ol", *(_event(event) for event in newest(found)), class_="events", tabindex="0"))


def newest(found: tuple[EventStatus, ...]) -> list[EventStatus]:
    """The events in reverse order, the newest first."""
    return sorted(found, key=lambda event: event.time)[: -MAX_EVENTS - 1 : -1]


def _event(event: EventStatus) -> Html:
    key = f"{event.time}:{event.text}"
    return tag("li", tag("time", format_time(event.time)), tag("span", event.text), class_=event.level, data_key=key)
