"""A real marimo notebook: cells that marimo runs again by itself, an interrupt, the card and the inline dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsnb.wire import discovery
from tests.browser.conftest import Tab
from tests.support.marimo import Theme, running_marimo, write_marimo_notebook
from tests.support.processes import is_running
from tests.support.waiting import wait_for

COUNT = "number_of_workers = 1"
START = """
import os, time
import dsnb
svc = dsnb.start(workers=number_of_workers, name="marimo", isolation="process")
svc
"""
SHOW_DASHBOARD = "svc.dashboard(height=420)"
READ = """
shared = dsnb.distribute("parallel_epochs", svc, job_name="train")
print("sum", sum(int(one) for one in dsnb.Dataset.range(10).apply(shared)))
"""
PREPARE = """
folder = {folder!r}
def when_allowed(number):
    while not os.path.exists(folder + "/allowed"):
        time.sleep(0.01)
    return number
elements = iter(dsnb.Dataset.range(9).map(when_allowed).apply(dsnb.distribute("parallel_epochs", svc)))
"""
WAIT = """
open(folder + "/waits", "w").close()
print("read", int(next(elements)))
"""


@pytest.mark.slow
def test_a_cell_that_marimo_runs_again_by_itself_scales_the_service_and_starts_no_second_one(
    tab: Tab, tmp_path: Path, artefacts: Path
) -> None:
    write_marimo_notebook(tmp_path / "book.py", COUNT, START, SHOW_DASHBOARD, READ)
    with opened(tab, tmp_path / "book.py"):
        wait_for(lambda: "sum 45" in text(tab), what="the cells to run", timeout=60)
        dashboard = tab.page.wait_for_selector("iframe[src*='key=']", timeout=60_000).content_frame()
        dashboard.wait_for_selector("html[data-ready][data-theme='light'] tr[data-job='train']", timeout=60_000)
        wait_for(lambda: "1 worker ·" in text(tab), what="the card", timeout=30)
        tab.page.screenshot(path=artefacts / "marimo.png")
        pid = discovery.running()[0].pid

        type_over(tab, 0, "number_of_workers = 2")
        wait_for(lambda: "2 workers ·" in text(tab), what="the start cell to run again by itself", timeout=60)
        said = "'marimo' is already running; now 2 worker(s) instead of 1"
        wait_for(lambda: said in text(tab), what="the cell to say so", timeout=30)
        assert [one.name for one in discovery.running()] == ["marimo"]
        workers = children(pid)
        tab.page.goto("about:blank")
    wait_for(lambda: not any(map(is_running, [pid, *workers])), what="the service to end with marimo", timeout=30)


@pytest.mark.slow
def test_an_interrupted_read_is_continued_when_its_cell_runs_again(
    tab: Tab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Not `tmp_path`, which is named after the test: the word that is waited for would stand in the notebook's code.
    folder = tmp_path_factory.mktemp("marimo")
    write_marimo_notebook(folder / "book.py", COUNT, START, PREPARE.format(folder=str(folder)), WAIT)
    with opened(tab, folder / "book.py"):
        wait_for((folder / "waits").exists, what="the cell to wait for an element", timeout=60)
        # The button ignores clicks between two cells, and the page may be behind the kernel.
        tab.page.wait_for_selector("[data-status='running'] >> text=waits", timeout=60_000)
        assert "interrupted" not in text(tab)
        tab.page.click("[data-testid='interrupt-button']:not(.disabled)")
        wait_for(lambda: "interrupted" in text(tab), what="the interrupt to end the cell", timeout=30)
        (folder / "allowed").touch()
        run_cell(tab, 3)
        try:
            wait_for(lambda: "read 0" in text(tab), what="the interrupted iterator to read on", timeout=30)
        except AssertionError as error:
            error.add_note(text(tab)[-3000:])
            raise
        assert [one.name for one in discovery.running()] == ["marimo"]
        tab.page.goto("about:blank")


@pytest.mark.slow
def test_the_inline_dashboard_has_the_dark_theme_of_the_notebook(tab: Tab, tmp_path: Path, artefacts: Path) -> None:
    page: Any = tab.page
    page.emulate_media(color_scheme="light")
    write_marimo_notebook(tmp_path / "book.py", COUNT, START, SHOW_DASHBOARD)
    with opened(tab, tmp_path / "book.py", "dark"):
        dashboard = page.wait_for_selector("iframe[src*='key=']", timeout=60_000).content_frame()
        dashboard.wait_for_selector("html[data-ready][data-theme='dark']", timeout=60_000)
        wait_for(lambda: "1 worker ·" in text(tab), what="the card", timeout=30)
        page.screenshot(path=artefacts / "marimo-dark.png")
        page.goto("about:blank")


@contextmanager
def opened(tab: Tab, notebook: Path, theme: Theme = "light") -> Iterator[None]:
    """The notebook in the tab, and its server until the end."""
    with running_marimo(notebook, theme) as address:
        tab.page.goto(address)
        tab.page.wait_for_selector("[data-testid='cell-editor']", timeout=60_000)
        yield


def text(tab: Tab) -> str:
    """What stands in the notebook."""
    return tab.text("#root")


def type_over(tab: Tab, cell: int, code: str) -> None:
    """Replace a cell's code, and run it."""
    tab.page.click(f"[data-testid='cell-editor'] >> nth={cell} >> .cm-content")
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type(code)
    tab.page.keyboard.press("Control+Enter")


def run_cell(tab: Tab, cell: int) -> None:
    """Run a cell as it is."""
    tab.page.click(f"[data-testid='cell-editor'] >> nth={cell} >> .cm-content")
    tab.page.wait_for_selector(f"[data-testid='cell-editor'] >> nth={cell} >> .cm-focused")
    tab.page.keyboard.press("Control+Enter")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
