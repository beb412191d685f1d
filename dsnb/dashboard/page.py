"""One open page: its document, and the tick that keeps it up to date.

The page is plain HTML with named places (`theme/page.html`), dressed by one style sheet. A single Panel component
carries the markup of all panels: a panel whose markup did not change sends nothing, and the few lines of script in
`theme/page.js` change what is on the page in place, so that markers glide, and focus, selection and open lists survive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import panel as pn
import param
from panel.custom import JSComponent

from dsnb.dashboard.feed import Feed
from dsnb.dashboard.markup import Html
from dsnb.dashboard.panels.cards import cards
from dsnb.dashboard.panels.events import events
from dsnb.dashboard.panels.header import banner, header
from dsnb.dashboard.panels.jobs import jobs
from dsnb.dashboard.panels.splits import splits
from dsnb.dashboard.panels.stages import stages
from dsnb.dashboard.panels.strip import strip
from dsnb.dashboard.panels.throughput import Chart, throughput
from dsnb.dashboard.panels.trainers import trainers
from dsnb.dashboard.panels.workers import workers
from dsnb.dashboard.view import Choice, View, view

THEME = Path(__file__).parent / "theme"

PANELS: Mapping[str, Callable[[View], Html]] = {
    "header": header,
    "banner": banner,
    "cards": cards,
    "strip": strip,
    "throughput": throughput,
    "trainers": trainers,
    "splits": splits,
    "stages": stages,
    "workers": workers,
    "jobs": jobs,
    "events": events,
}

_RECENT_S = 10.0


class Board(JSComponent):
    """The markup of each panel, and a beat that tells the page its server is alive."""

    beat = param.Integer()
    html_header = param.String()
    html_banner = param.String()
    html_cards = param.String()
    html_strip = param.String()
    html_throughput = param.String()
    html_trainers = param.String()
    html_splits = param.String()
    html_stages = param.String()
    html_workers = param.String()
    html_jobs = param.String()
    html_events = param.String()

    _esm = THEME / "page.js"


class Session:
    """What one open page has picked and is shown."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._choice = Choice()
        self.board = Board(width=0, height=0, margin=0)  # type: ignore[no-untyped-call]
        self.chart = Chart()
        self.tick()

    def tick(self) -> None:
        """Look at the feed and change on the page what is no longer so."""
        seen = self._view()
        changed = {"beat": self.board.beat + 1}
        self.board.param.update(**changed, **self._changes(seen))
        self.chart.update(seen, self._feed.since, time.time())

    def picked(self, event: Any) -> None:
        """Take a choice that was made on the page; what is no choice is ignored."""
        message = event.data
        if isinstance(message, dict):
            self._choice = self._choice.pick(str(message.get("pick")), str(message.get("value", "")))
            self.tick()

    def _view(self) -> View:
        recent = tuple(self._feed.since(time.monotonic() - _RECENT_S))
        return view(self._feed.latest(), recent, self._feed.health(), self._choice)

    def _changes(self, seen: View) -> dict[str, str]:
        markup = {f"html_{name}": str(panel(seen)) for name, panel in PANELS.items()}
        return {name: html for name, html in markup.items() if getattr(self.board, name) != html}


def page(feed: Feed, every_ms: int = 500) -> pn.Template:
    """The document of one session, which keeps itself up to date while the page is open."""
    session = Session(feed)
    session.board.on_msg(session.picked)
    template = pn.Template(template=_html())
    template.add_panel("board", session.board)
    figure = pn.pane.Bokeh(session.chart.figure, sizing_mode="stretch_width")  # type: ignore[no-untyped-call]
    template.add_panel("throughput", figure)
    template.add_variable("app_favicon", "own")
    template.add_variable("apple_icon", "own")
    pn.state.onload(lambda: _keep(session, every_ms))
    return template


def _keep(session: Session, every_ms: int) -> None:
    # Panel's own periodic callback flips its busy counter at each call, which costs three times the CPU.
    document = pn.state.curdoc

    def tick() -> None:
        with pn.io.hold():
            session.tick()

    if document is not None:
        document.add_periodic_callback(tick, every_ms)


def _html() -> str:
    style = (THEME / "page.css").read_text(encoding="utf-8")
    return (THEME / "page.html").read_text(encoding="utf-8").replace("/*style*/", style)
