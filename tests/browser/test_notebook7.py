"""A real Notebook 7 with a real kernel, under a base URL: card, dashboard, an interrupt, and a cell that runs twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from dsnb.wire import discovery
from tests.browser.conftest import Tab
from tests.browser.jupyter_page import (
    BUSY,
    IDLE,
    SHOW_DASHBOARD,
    STOP,
    TRAIN,
    card,
    check_busy_cell,
    frame,
    run,
    run_cell,
    text,
)
from tests.support.jupyter import running_lab, write_notebook
from tests.support.waiting import wait_for

START = """
import os, time
import dsnb
svc = dsnb.start(workers=1, name="twice")
svc
"""
WAIT = """
def when_allowed(number):
    while not os.path.exists("allowed"):
        time.sleep(0.01)
    return number
elements = iter(dsnb.Dataset.range(9).map(when_allowed).apply(dsnb.distribute("parallel_epochs", svc)))
open("waits", "w").close()
next(elements)
"""
READ_ON = """
print("read", int(next(elements)))
"""
END = """
svc.stop(); print("all is over")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook7")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with running_lab(folder, application="notebook") as address:
        yield address


@pytest.mark.slow
def test_a_running_cell_freezes_neither_the_dashboard_nor_the_card(
    tab: Tab, address: str, folder: Path, artefacts: Path
) -> None:
    write_notebook(folder / "busy.ipynb", TRAIN, SHOW_DASHBOARD, BUSY, STOP)
    open_notebook(tab, address, "busy.ipynb")
    check_busy_cell(tab, folder, artefacts, "notebook7")
    tab.page.goto("about:blank")


@pytest.mark.slow
def test_a_read_is_interrupted_and_continued_and_a_cell_that_runs_twice_starts_one_service(
    tab: Tab, address: str, folder: Path
) -> None:
    write_notebook(folder / "twice.ipynb", START, WAIT, READ_ON, END)
    open_notebook(tab, address, "twice.ipynb")
    run(tab)
    run(tab)
    wait_for((folder / "waits").exists, what="the cell to wait for an element", timeout=60)
    tab.page.click("[data-command='notebook:interrupt-kernel']")
    wait_for(lambda: "KeyboardInterrupt" in text(tab), what="the interrupt to end the cell", timeout=90)
    (folder / "allowed").touch()
    run_cell(tab, 2)
    wait_for(lambda: "read 0" in text(tab), what="the interrupted iterator to read on", timeout=90)
    run_cell(tab, 0)
    wait_for(lambda: "'twice' is already running" in text(tab), what="the start cell to run again", timeout=90)
    assert [one.name for one in discovery.running()] == ["twice"]
    wait_for(lambda: "twice" in card(tab), what="the card to be shown again", timeout=90)
    run_cell(tab, 3)
    wait_for(lambda: "all is over" in text(tab), what="the notebook to end", timeout=90)
    tab.page.goto("about:blank")


@pytest.mark.slow
def test_card_and_dashboard_follow_the_dark_theme(tab: Tab, address: str, folder: Path, artefacts: Path) -> None:
    write_notebook(folder / "dark.ipynb", START, SHOW_DASHBOARD, END)
    page: Any = tab.page
    page.emulate_media(color_scheme="light")
    open_notebook(tab, address, "dark.ipynb")
    run(tab)
    run(tab)
    dashboard = frame(tab)
    dashboard.wait_for_selector("html[data-ready][data-theme='light']", timeout=60_000)
    page.click("text=Settings")
    page.click("text=Theme")
    page.click("text=JupyterLab Dark >> nth=0")
    dashboard.wait_for_selector("html[data-theme='dark']", timeout=30_000)
    wait_for(lambda: "twice" in card(tab), what="the card", timeout=90)
    page.screenshot(path=artefacts / "notebook7-dark.png")
    run_cell(tab, 2)
    wait_for(lambda: "all is over" in text(tab), what="the notebook to end", timeout=90)
    page.goto("about:blank")


def open_notebook(tab: Tab, address: str, name: str) -> None:
    """Open a notebook, and choose its first cell once the page has a kernel: without one, it forgets what was run."""
    tab.page.goto(f"{address}notebooks/{name}")
    wait_for(lambda: has_idle_kernel(address, name), what="the notebook's kernel", timeout=60)
    tab.wait("document.body.innerText.includes('Python 3 (ipykernel)')", timeout=60)
    tab.page.wait_for_selector(IDLE, timeout=60_000, state="attached")
    tab.page.click(".jp-Cell .cm-content")


def has_idle_kernel(address: str, name: str) -> bool:
    with urlopen(f"{address}api/sessions", timeout=10) as answer:
        kernels = [session["kernel"] for session in json.load(answer) if session["path"] == name]
    return any(kernel["execution_state"] == "idle" and kernel["connections"] for kernel in kernels)
