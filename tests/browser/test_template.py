"""The notebook to begin with, in the launcher of a real JupyterLab with jupyterlab-templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsnb.notebook.template import write_notebook
from tests.browser.conftest import Tab
from tests.support.jupyter import running_lab
from tests.support.requires import require_module


@pytest.mark.slow
def test_the_launcher_makes_a_notebook_of_the_template_that_runs(tab: Tab, tmp_path: Path, artefacts: Path) -> None:
    require_module("jupyterlab_templates")
    templates = tmp_path / "jupyter" / "notebook_templates" / "dsnb"  # as the wheel puts it under share/jupyter
    templates.mkdir(parents=True)
    write_notebook(templates / "dsnb.ipynb")
    with running_lab(tmp_path, env={"JUPYTER_PATH": str(tmp_path / "jupyter")}) as address:
        page = tab.page
        page.goto(f"{address}lab?reset")
        page.click(".jp-LauncherCard:has-text('Template')", timeout=60_000)
        page.select_option(".jp-Dialog select >> nth=0", "dsnb")
        page.screenshot(path=artefacts / "template-dialog.png")
        page.click(".jp-Dialog button:has-text('GO')")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.wait_for_selector(".jp-Notebook h1:has-text('Training with dsnb')", timeout=60_000)
        tab.wait("document.body.innerText.includes('(ipykernel) | Idle')", timeout=60)
        page.click("text=Run >> nth=0")
        page.click("text=Run All Cells")
        tab.wait("document.querySelector('.jp-Notebook').innerText.includes('50,000 samples')", timeout=60)
        tab.wait("document.querySelector('.jp-Notebook').innerText.includes('Job \\'train\\'')", timeout=60)
        page.screenshot(path=artefacts / "template.png")
        page.goto("about:blank")
