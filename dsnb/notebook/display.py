"""How a service is displayed in a cell: HTML without styles or scripts, and the frame that embeds the dashboard."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsnb.dashboard.feed import Feed
from dsnb.dashboard.source import INTERVAL_S
from dsnb.errors import DsnbError
from dsnb.monitor.formatting import LEVEL_SIGNS
from dsnb.monitor.verdict import Verdict
from dsnb.monitor.watch import watch_snapshots
from dsnb.notebook.frontend import Frontend, detect_frontend, vs_code_url

if TYPE_CHECKING:
    from dsnb.dashboard.server import DashboardServer


def service_title(name: str, target: str) -> str:
    """The service's name and address, as HTML."""
    return f"<b>dsnb</b> service <code>{escape(name)}</code> at <code>{escape(target)}</code>"


def verdicts_html(found: Iterable[Verdict]) -> str:
    """Each verdict with its remedy, as HTML paragraphs."""
    return "".join(f"<p>{LEVEL_SIGNS[one.level]} <b>{escape(one.text)}</b> {escape(one.remedy)}</p>" for one in found)


def unreachable_html(reason: str) -> str:
    """HTML for a service that does not answer."""
    return f": <b>not reachable</b><br><code>{escape(reason)}</code>"


def error_html(error: DsnbError) -> str:
    """An error and its hint in one line of HTML."""
    return escape(" – ".join(part for part in (error.what, error.hint) if part))


def dashboard_links(url: str, *, in_jupyter: bool = True) -> str:
    """Links to the dashboard: its address, and the one through Jupyter if that differs.

    Args:
        url: The dashboard's address on this machine.
        in_jupyter: Whether the links are shown in Jupyter, which may have a proxy.
    """
    frontend, (port, path) = detect_frontend(), _port_and_path(url)
    if frontend is Frontend.COLAB:
        return "<code>svc.dashboard()</code> shows the dashboard"
    browser_url = _browser_url(url)
    first = f'<a href="{escape(browser_url, quote=True)}" target="_blank">open the dashboard</a>'
    if browser_url != url:
        return f'{first} (<a href="{escape(url, quote=True)}" target="_blank">on the kernel\'s machine</a>)'
    if frontend is Frontend.VS_CODE:
        return f"{first} (port {port})"
    if not in_jupyter:
        return first
    # Only the browser knows whether Jupyter itself is reached through another machine, so offer both links.
    through = escape(f"/proxy/{port}/{path}", quote=True)
    return f'{first} (<a href="{through}" target="_blank">through Jupyter</a>)'


class LazyDashboard:
    """The dashboard of one service; its server starts at the first call of `url`.

    Attributes:
        feed: The snapshots that the dashboard's pages and the card show; follows the service once one of them is shown.
    """

    def __init__(self, target: str, token: str | None) -> None:
        self._address = target, token
        self.feed = Feed(lambda stop: watch_snapshots(target, token, INTERVAL_S, stop))
        self._server: DashboardServer | None = None
        self._lock = threading.RLock()

    def url(self) -> str:
        """Start to serve the dashboard if needed, and return its address."""
        from dsnb.dashboard.server import start_in_thread  # panel takes a second to import, and few calls need it

        with self._lock:
            if self._server is None:
                self._server = start_in_thread(self.feed, look_up_address=lambda: self._address)
            return self._server.url

    def stop(self, end: str = "") -> None:
        """Stop the server and the feed; a second call does nothing.

        Args:
            end: Why pages show nothing new from now on, as a sentence.
        """
        self.feed.stop(end=end)
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.stop(end)


_FOLLOW_THEME = """<script>(function () {
  var at = document.currentScript && document.currentScript.parentElement, data = document.body.dataset;
  if (!at) return;
  function theme() {
    if (data.vscodeThemeKind) return /(dark|contrast)$/.test(data.vscodeThemeKind) ? "dark" : "light";
    return data.jpThemeLight === undefined ? "" : data.jpThemeLight === "false" ? "dark" : "light";
  }
  at.querySelectorAll("iframe[data-dsnb]").forEach(function (frame) {
    function tell() {
      if (theme() && frame.contentWindow) frame.contentWindow.postMessage({dsnbTheme: theme()}, "*");
    }
    frame.addEventListener("load", tell);
    if (theme())
      new MutationObserver(tell).observe(document.body, {
        attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"]
      });
  });
})();</script>"""
"""Tells the page in the frame the theme of JupyterLab or VS Code, which a page of another origin cannot ask for.

VS Code runs a script of an output as a new element at the output's end, so the frame is not always next to the script.
"""


class DashboardFrame:
    """Displays the dashboard: an inline frame in a notebook.

    Args:
        url: The dashboard's address for the user's browser.
        height: The height of the frame, in pixels.
        note: A sentence, as HTML, that is shown above the frame.
    """

    def __init__(self, url: str, height: int, note: str = "") -> None:
        self.url = url
        self.height = height
        self._note = note

    def __repr__(self) -> str:
        return "Dashboard(live in the page)"

    def _repr_html_(self) -> str:
        return self._html() + _FOLLOW_THEME

    def _mime_(self) -> tuple[str, str]:
        # marimo's display protocol. A script would make marimo wrap the output in a frame of 400 pixels.
        return "text/html", self._html(f"#theme={_marimo_theme()}")

    def _html(self, fragment: str = "") -> str:
        url = escape(self.url, quote=True)
        return (
            f'<p>dsnb dashboard: <a href="{url}" target="_blank">{url}</a>{self._note}</p><iframe data-dsnb'
            f' src="{url}{fragment}" width="100%" height="{self.height}" style="border:0"></iframe>'
        )


class ColabFrame:
    """Displays the dashboard in Colab, whose browser reaches a port of the kernel only through Colab's own function."""

    def __init__(self, port: str, path: str, height: int) -> None:
        self._port, self._path, self._height = port, path, height

    def __repr__(self) -> str:
        return "Dashboard(live in the page)"

    def _ipython_display_(self) -> None:
        output: Any = import_module("google.colab.output")  # only Colab has it
        output.serve_kernel_port_as_iframe(int(self._port), path=f"/{self._path}", height=str(self._height))


def dashboard_frame(url: str, height: int) -> Any:
    """What displays the dashboard served at `url`, for the application that shows the cells.

    `DSNB_DASHBOARD_URL`, JupyterHub's proxy and VS Code's port forwarding may change the address.
    """
    frontend = detect_frontend()
    port, path = _port_and_path(url)
    if frontend is Frontend.COLAB and "DSNB_DASHBOARD_URL" not in os.environ:
        return ColabFrame(port, path, height)
    note = f"<br>{_forwarding_note(port)}" if frontend is Frontend.VS_CODE else ""
    return DashboardFrame(_browser_url(url), height, note)


def _forwarding_note(port: str) -> str:
    return f"If it stays empty, forward port {port} in the Ports view of VS Code."


def _port_and_path(url: str) -> tuple[str, str]:
    port, _, path = url.rpartition(":")[2].partition("/")
    return port, path


def _browser_url(url: str) -> str:
    template, prefix = os.environ.get("DSNB_DASHBOARD_URL"), os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    port, path = _port_and_path(url)
    if template:
        return f"{template.format(port=port, **os.environ).rstrip('/')}/{path}"
    if detect_frontend() is Frontend.VS_CODE:
        return vs_code_url(port, path)
    if prefix:
        return f"{prefix.rstrip('/')}/proxy/{port}/{path}"
    return url


def _marimo_theme() -> str:
    """The theme of the marimo notebook that displays something now; "light" if it follows the system's."""
    return str(import_module("marimo").app_meta().theme)
