"""One open page: its document, and the periodic callback that updates it.

The page is plain HTML with named slots (`theme/page.html`) and one style sheet. A single Panel component holds the
markup of all panels. A panel whose markup did not change sends nothing. The script `theme/page.js` changes the page in
place, so that transitions continue, and focus, selection and open lists survive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import panel as pn
import param
from msgspec.structs import replace
from panel.custom import JSComponent

from dsnb.dashboard.control_requests import ACTIONS, Outcome, Request, RequestRunner, subject_exists
from dsnb.dashboard.feed import SnapshotSource
from dsnb.dashboard.markup import Html
from dsnb.dashboard.panels.buttons import notices
from dsnb.dashboard.panels.cards import cards
from dsnb.dashboard.panels.events import events
from dsnb.dashboard.panels.header import banner, header
from dsnb.dashboard.panels.jobs import jobs
from dsnb.dashboard.panels.peek import peek
from dsnb.dashboard.panels.rounds import rounds
from dsnb.dashboard.panels.splits import split_timeline, splits
from dsnb.dashboard.panels.stages import stages
from dsnb.dashboard.panels.strip import strip
from dsnb.dashboard.panels.throughput import Chart, throughput
from dsnb.dashboard.panels.trainers import trainers
from dsnb.dashboard.panels.verdict import verdict
from dsnb.dashboard.panels.waits import waits
from dsnb.dashboard.panels.workers import workers
from dsnb.dashboard.replay import Replay
from dsnb.dashboard.view import ControlState, Selection, TrainerOrder, View, view

THEME = Path(__file__).parent / "theme"

PANELS: Mapping[str, Callable[[View], Html]] = {
    "header": header,
    "banner": banner,
    "verdict": verdict,
    "cards": cards,
    "strip": strip,
    "throughput": throughput,
    "waits": waits,
    "trainers": trainers,
    "rounds": rounds,
    "split_timeline": split_timeline,
    "splits": splits,
    "stages": stages,
    "workers": workers,
    "jobs": jobs,
    "peek": peek,
    "events": events,
    "notices": notices,
}

_CONFIRM_WITHIN_S = 4.0
"""How long a button of a destructive action waits for the second press, in seconds."""


class Board(JSComponent):
    """The markup of each panel, and a counter that shows the page that its server is alive."""

    beat = param.Integer()
    html_header = param.String()
    html_banner = param.String()
    html_verdict = param.String()
    html_cards = param.String()
    html_strip = param.String()
    html_throughput = param.String()
    html_waits = param.String()
    html_trainers = param.String()
    html_rounds = param.String()
    html_split_timeline = param.String()
    html_splits = param.String()
    html_stages = param.String()
    html_workers = param.String()
    html_jobs = param.String()
    html_peek = param.String()
    html_events = param.String()
    html_notices = param.String()

    _esm = THEME / "page.js"


class PageSession:
    """The state of one open page: the user's selection and the markup that is shown.

    Args:
        feed: The source that the page shows.
        requests: Runs the page's requests; None for a read-only page.
        read_only_reason: Why the page is read-only, as text.
    """

    def __init__(self, feed: SnapshotSource, requests: RequestRunner | None = None, read_only_reason: str = "") -> None:
        self._feed = feed
        self._requests = requests
        self._read_only_reason = read_only_reason
        self._selection = Selection()
        self._trainer_order = TrainerOrder()
        self._unconfirmed: tuple[Request, float] | None = None
        self._peek_request: Request | None = None
        self._peek: Outcome | None = None
        self.board = Board(width=0, height=0, margin=0)  # type: ignore[no-untyped-call]
        self.chart = Chart()
        self.tick()

    def tick(self) -> None:
        """Read the feed and update the parts of the page that changed."""
        seen = self._view()
        changed = {"beat": self.board.beat + 1}
        self.board.param.update(**changed, **self._changed_markup(seen))
        self.chart.update(seen, self._feed.since, self._feed.now())

    def on_message(self, event: Any) -> None:
        """Handle a selection or a request from the page; other messages are ignored."""
        message = event.data
        if not isinstance(message, dict):
            return
        if isinstance(self._feed, Replay) and message.get("pick") in {"seek", "play"}:
            self._seek_or_play(self._feed, str(message["pick"]), str(message.get("value", "")))
        elif message.get("pick") == "close-peek":
            self._peek_request = self._peek = None
        elif "pick" in message:
            self._selection = self._selection.with_pick(str(message["pick"]), str(message.get("value", "")))
        elif "do" in message and isinstance(message.get("target"), dict):
            target = tuple((str(kind), str(name)) for kind, name in message["target"].items())
            self._handle_request(Request(str(message["do"]), target))
        self.tick()

    def _seek_or_play(self, replay: Replay, command: str, value: str) -> None:
        if command == "play":
            replay.play(on=value == "on")
            return
        with suppress(ValueError):
            replay.seek(float(value))

    def _handle_request(self, request: Request) -> None:
        latest = self._feed.latest()
        known = subject_exists(latest.snapshot if latest else None, request)
        if self._requests is None or request.action not in ACTIONS or not known:
            return
        if ACTIONS[request.action].needs_confirmation and self._awaiting_confirmation() != request:
            self._unconfirmed = request, time.monotonic()
            return
        self._unconfirmed = None
        under_way = self._requests.submit(request) or request in self._pending()
        if request.action == "peek" and under_way:
            self._peek = self._peek if request == self._peek_request else None
            self._peek_request = request

    def _awaiting_confirmation(self) -> Request | None:
        """The destructive request whose button was pressed once, until the time for the second press is over."""
        if self._unconfirmed is not None and time.monotonic() - self._unconfirmed[1] > _CONFIRM_WITHIN_S:
            self._unconfirmed = None
        return self._unconfirmed[0] if self._unconfirmed else None

    def _pending(self) -> frozenset[Request]:
        outcomes = self._requests.outcomes() if self._requests else ()
        return ControlState(outcomes=outcomes).pending

    def _latest_peek(self) -> Outcome | None:
        """What the last peek of this page found; kept here, because the runner keeps only the newest outcomes."""
        if self._requests is None or self._peek_request is None:
            return None
        newest = self._requests.outcome_of(self._peek_request)
        if newest is not None and (newest.state != "pending" or self._peek is None):
            self._peek = newest
        return self._peek

    def _view(self) -> View:
        control = ControlState(
            allowed=self._requests is not None,
            read_only_reason=self._read_only_reason,
            unconfirmed=self._awaiting_confirmation(),
            outcomes=self._requests.outcomes() if self._requests else (),
            peek=self._latest_peek(),
        )
        # Count back from the newest sample, not from now: the page of a silent service keeps its last samples.
        latest = self._feed.latest()
        history = self._feed.since(latest.arrived_at - self._selection.span_s) if latest else ()
        replayed = self._feed.position() if isinstance(self._feed, Replay) else None
        seen = view(history, self._feed.health(), self._selection, control, replayed, self._trainer_order)
        return replace(seen, last_read=tuple(self._feed.last_read(seen.job.name if seen.job else None)))

    def _changed_markup(self, seen: View) -> dict[str, str]:
        markup = {f"html_{name}": str(panel(seen)) for name, panel in PANELS.items()}
        return {name: html for name, html in markup.items() if getattr(self.board, name) != html}


def page(
    feed: SnapshotSource, requests: RequestRunner | None = None, read_only_reason: str = "", every_ms: int = 500
) -> pn.Template:
    """The document of one session; it updates itself while the page is open."""
    session = PageSession(feed, requests, read_only_reason)
    session.board.on_msg(session.on_message)
    template = _template()
    template.add_panel("board", session.board)
    figure = pn.pane.Bokeh(session.chart.figure, sizing_mode="stretch_width")  # type: ignore[no-untyped-call]
    template.add_panel("throughput", figure)
    pn.state.onload(lambda: _schedule_ticks(session, every_ms))
    return template


def refused_page() -> pn.Template:
    """The document of a page that was opened without the key: it says so, and shows no data."""
    template = _template("refused.html")
    template.add_panel("board", pn.pane.HTML(""))  # type: ignore[no-untyped-call]
    return template


def _template(name: str = "page.html") -> pn.Template:
    template = pn.Template(template=_read_template(name))
    template.add_variable("app_favicon", "own")
    template.add_variable("apple_icon", "own")
    return template


def _schedule_ticks(session: PageSession, every_ms: int) -> None:
    # Panel's own periodic callback toggles its busy counter on each call, which takes three times the CPU time.
    document = pn.state.curdoc

    def tick() -> None:
        with pn.io.hold():
            session.tick()

    if document is not None:
        document.add_periodic_callback(tick, every_ms)


def _read_template(name: str) -> str:
    style = (THEME / "page.css").read_text(encoding="utf-8")
    return (THEME / name).read_text(encoding="utf-8").replace("/*style*/", style)
