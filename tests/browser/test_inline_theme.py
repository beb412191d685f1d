"""The page under a cell follows the theme of JupyterLab or VS Code, which say what it is on their `body`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import dsnb
from dsnb.notebook.display import DashboardFrame
from tests.browser.conftest import Tab


@pytest.mark.slow
def test_the_inline_page_follows_the_theme_of_jupyterlab(tab: Tab, service: dsnb.DataService) -> None:
    frame = DashboardFrame(service.dashboard_url(), 600)
    page: Any = tab.page
    page.emulate_media(color_scheme="light")
    with serving(f"<!doctype html><body data-jp-theme-light='false'>{frame._repr_html_()}</body>") as url:
        page.goto(url)
        inner = page.wait_for_selector("iframe").content_frame()

        inner.wait_for_selector("html[data-ready][data-theme='dark']", timeout=30_000)
        page.evaluate("document.body.dataset.jpThemeLight = 'true'")
        inner.wait_for_selector("html[data-theme='light']", timeout=10_000)


RUN_AS_VS_CODE = """
const output = document.getElementById("output");
for (const script of [...output.getElementsByTagName("script")]) {
  const copy = document.createElement("script");
  copy.text = script.innerText;
  output.appendChild(copy).parentNode.removeChild(copy);
}
"""
"""VS Code inserts an output's HTML, whose scripts do not run then, and runs a copy of each at the output's end."""


@pytest.mark.slow
def test_the_inline_page_follows_the_theme_of_vs_code(tab: Tab, service: dsnb.DataService) -> None:
    frame = DashboardFrame(service.dashboard_url(), 600)
    page: Any = tab.page
    page.emulate_media(color_scheme="light")
    with serving("<!doctype html><body data-vscode-theme-kind='vscode-dark'><div id='output'></div></body>") as url:
        page.goto(url)
        page.evaluate("html => { document.getElementById('output').innerHTML = html }", frame._repr_html_())
        page.evaluate(RUN_AS_VS_CODE)
        inner = page.wait_for_selector("iframe").content_frame()

        inner.wait_for_selector("html[data-ready][data-theme='dark']", timeout=30_000)
        for kind, theme in (
            ("vscode-light", "light"),
            ("vscode-high-contrast", "dark"),
            ("vscode-high-contrast-light", "light"),
        ):
            page.evaluate("kind => { document.body.dataset.vscodeThemeKind = kind }", kind)
            inner.wait_for_selector(f"html[data-theme='{theme}']", timeout=10_000)


@pytest.mark.slow
def test_the_inline_page_follows_the_system_where_the_notebook_names_no_theme(
    tab: Tab, service: dsnb.DataService
) -> None:
    frame = DashboardFrame(service.dashboard_url(), 600)
    page: Any = tab.page
    page.emulate_media(color_scheme="dark")
    with serving(f"<!doctype html><body>{frame._repr_html_()}</body>") as url:
        page.goto(url)
        inner = page.wait_for_selector("iframe").content_frame()
        inner.wait_for_selector("html[data-ready][data-theme='dark']", timeout=30_000)


@contextmanager
def serving(html: str) -> Iterator[str]:
    """The address of a server that answers every request with this page; its origin is not the dashboard's."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 1.0  # a browser opens connections in advance, and may never send anything on them

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join(10)
