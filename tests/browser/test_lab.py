"""A real JupyterLab with a real kernel, under a base URL: what a running cell must not freeze."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Tab
from tests.browser.jupyter_page import BUSY, SHOW_DASHBOARD, STOP, TRAIN, check_busy_cell
from tests.support.jupyter import running_lab, write_notebook


@pytest.mark.slow
def test_a_running_cell_freezes_neither_the_dashboard_nor_the_card(tab: Tab, tmp_path: Path, artefacts: Path) -> None:
    write_notebook(tmp_path / "busy.ipynb", TRAIN, SHOW_DASHBOARD, BUSY, STOP)
    with running_lab(tmp_path) as address:
        tab.page.goto(f"{address}lab/tree/busy.ipynb?reset")
        tab.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        tab.wait("document.body.innerText.includes('(ipykernel) | Idle')", timeout=60)
        tab.page.click(".jp-Cell .cm-content")
        check_busy_cell(tab, tmp_path, artefacts, "lab")
        assert tab.strangers() == []
        tab.page.goto("about:blank")
