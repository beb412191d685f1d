"""The live card that a cell shows for a service: ipywidgets that a background thread updates.

A widget updated from a thread changes while a cell runs; Panel's own notebook output does not. User input (the slider)
reaches Python when the cell ends, on a thread that the kernel chooses. A service has one card, however often it is
shown, and one thread to update it, from the first display until the service stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dsnb.dashboard.feed import Feed
from dsnb.errors import DsnbError
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.status_html import status_tables, summary
from dsnb.monitor.verdict import latest_verdicts
from dsnb.notebook import display
from dsnb.notebook.frontend import running_shell

INTERVAL_S = 1.0
MAX_WORKERS = 16
_JOIN_TIMEOUT_S = 5.0

_STYLE = (
    "<style>.dsnb-card p { margin: 6px 0 2px; line-height: 1.4 }"
    " .dsnb-card :is(th, td) { padding: 1px 18px 1px 0; text-align: left; line-height: 1.6; white-space: nowrap;"
    " font-variant-numeric: tabular-nums } .dsnb-card th { font-weight: 500; opacity: 0.7 }"
    " .dsnb-card a { text-decoration: underline }</style>"
)
"""Jupyter styles the tables in a cell's output, but not those inside a widget; marimo styles none."""


def can_show_widgets() -> bool:
    """Whether this process is a Jupyter kernel and ipywidgets is installed."""
    return running_shell() is not None and find_spec("ipywidgets") is not None


class ServiceCard:
    """The live card of one service.

    Args:
        name: The service's name.
        target: The address that the service listens on.
        feed: The feed of the service's dashboard; the card does not stop it.
        scale: Scales the service to a number of workers.
        dashboard_url: Starts the dashboard's server if needed and returns its address; raises `DsnbError` on failure.
    """

    def __init__(
        self, name: str, target: str, feed: Feed, scale: Callable[[int], None], dashboard_url: Callable[[], str]
    ) -> None:
        self._name, self._target, self._feed = name, target, feed
        self._scale, self._dashboard_url = scale, dashboard_url
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._widgets: CardWidgets | None = None
        self._link = ""

    def mime_bundle(self) -> dict[str, Any]:
        """The card's cell output by MIME type; empty if widgets cannot be shown."""
        if not can_show_widgets() or self._stop.is_set():
            return {}
        with self._lock:
            if self._widgets is None:
                self._widgets = CardWidgets(display.service_title(self._name, self._target), self._scale_in_background)
                self._thread = threading.Thread(target=self._follow, name="dsnb-card", daemon=True)
                self._thread.start()
            return self._widgets.mime_bundle()

    def static_html(self, snapshot: Snapshot) -> str:
        """The card as it is now, for a notebook that is not Jupyter: heading, link to the dashboard, tables."""
        link = self._dashboard_link(in_jupyter=False)
        return f'{_STYLE}<div class="dsnb-card">{self._head(snapshot, link)}{status_tables(snapshot)}</div>'

    def stop(self) -> None:
        """Stop updating the card and mark it as stopped; a second call does nothing."""
        with self._lock:
            self._stop.set()
            thread, widgets = self._thread, self._widgets
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_TIMEOUT_S)
        if widgets is not None:
            widgets.show_final(f"{display.service_title(self._name, self._target)}: stopped")

    def _scale_in_background(self, workers: int) -> None:
        """Scale in a new thread: the calling thread may be the kernel's, and a worker may take long to leave."""
        threading.Thread(target=self._scale_to, args=(workers,), name="dsnb-card-scale", daemon=True).start()

    def _scale_to(self, workers: int) -> None:
        assert self._widgets is not None
        try:
            self._scale(workers)
            self._widgets.show_message("")
        except DsnbError as error:
            self._widgets.show_message(display.error_html(error))

    def _follow(self) -> None:
        assert self._widgets is not None
        self._feed.start()
        self._link = self._dashboard_link()
        while not self._stop.is_set():
            self._draw(self._widgets)
            self._stop.wait(INTERVAL_S)

    def _draw(self, widgets: CardWidgets) -> None:
        """Show the newest sample, or the error; nothing before the first sample arrives."""
        sample, error = self._feed.latest(), self._feed.health().error
        if error:
            widgets.show(display.service_title(self._name, self._target) + display.unreachable_html(error), "", None)
        elif sample is not None:
            now = sample.snapshot
            verdicts = latest_verdicts([past.snapshot for past in self._feed.since(0.0)])
            widgets.show(
                self._head(now, self._link), display.verdicts_html(verdicts) + status_tables(now), len(now.workers)
            )

    def _head(self, snapshot: Snapshot, link: str) -> str:
        return f"{display.service_title(self._name, self._target)}{link}<br>{summary(snapshot)}"

    def _dashboard_link(self, *, in_jupyter: bool = True) -> str:
        if find_spec("panel") is None:
            return ""
        try:
            return " · " + display.dashboard_links(self._dashboard_url(), in_jupyter=in_jupyter)
        except DsnbError as error:
            return f" · {display.error_html(error)}"


class CardWidgets:
    """The ipywidgets of a card. All methods may be called from any thread."""

    def __init__(self, head: str, on_scale: Callable[[int], None]) -> None:
        widgets: Any = import_module("ipywidgets")  # takes half a second; only a displayed card needs it
        self._on_scale = on_scale
        self._shown_workers: int | None = None
        self._head, self._body, self._message = widgets.HTML(head), widgets.HTML(), widgets.HTML()
        # Without continuous_update=False, each step of a drag would start or stop workers.
        self._slider = widgets.IntSlider(
            min=0, max=MAX_WORKERS, description="workers", continuous_update=False, disabled=True
        )
        self._slider.observe(self._on_slider_change, names="value")
        for html in (self._head, self._body):
            html.add_class("dsnb-card")
        row = widgets.HBox([self._slider, self._message])
        self._box = widgets.VBox([self._head, row, self._body])

    def mime_bundle(self) -> dict[str, Any]:
        """The widgets as a cell's output, by MIME type."""
        made: dict[str, Any] = self._box._repr_mimebundle_()
        return made

    def show(self, head: str, body: str, workers: int | None) -> None:
        """Show the current state; `workers` is None if the service does not answer."""
        self._slider.disabled = workers is None
        if workers is not None and workers != self._shown_workers:
            self._shown_workers = workers
            self._slider.max = max(MAX_WORKERS, workers)
            self._slider.value = workers
        _set(self._head, head)
        _set(self._body, _STYLE + body)

    def show_message(self, message: str) -> None:
        """Show a message next to the slider."""
        _set(self._message, message)

    def show_final(self, head: str) -> None:
        """Show a last heading, remove the body and disable the slider."""
        self._slider.disabled = True
        _set(self._head, head)
        _set(self._body, "")

    def _on_slider_change(self, change: dict[str, Any]) -> None:
        # `show` also moves the slider; only a change made by the user scales the service.
        if change["new"] != self._shown_workers:
            self._shown_workers = change["new"]
            _set(self._message, f"scaling to {change['new']} …")
            self._on_scale(change["new"])


def _set(widget: Any, html: str) -> None:
    if widget.value != html:
        widget.value = html
