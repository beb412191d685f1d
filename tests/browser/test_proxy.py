"""The dashboard under Jupyter's own address, as on Binder: through the entry point that jupyter-server-proxy finds."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import dsnb
from tests.browser.conftest import Tab
from tests.support.jupyter import running_lab
from tests.support.waiting import wait_for


def test_jupyter_serves_the_dashboard_with_its_websocket_and_controls(
    tab: Tab, tmp_path: Path, artefacts: Path
) -> None:
    with (
        dsnb.start(workers=1, name="behind-jupyter") as service,
        running_lab(tmp_path, env={"DSNB_SERVICE": service.name}) as address,
    ):
        assert "dsnb dashboard" in urlopen(f"{address}server-proxy/servers-info", timeout=30).read().decode()
        elements = iter(
            dsnb.Dataset.range(10).repeat().apply(dsnb.distribute("parallel_epochs", service, job_name="j"))
        )
        next(elements)
        tab.open(f"{address}dsnb/live")
        tab.wait("document.querySelector('.badge')?.dataset.state === 'live'")
        tab.page.click("button[data-do='pause']")
        wait_for(lambda: service.status().job("j").state == "paused", what="the job to be paused from the page")  # type: ignore[union-attr]
        tab.page.screenshot(path=artefacts / "behind_jupyter.png")
        assert tab.strangers() == []
        tab.page.goto("about:blank")
        elements.close()  # type: ignore[attr-defined]
