"""The dashboard under Jupyter's own address, as on Binder: through the entry point that jupyter-server-proxy finds."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

import dsnb
from tests.browser.conftest import Tab, Training
from tests.support.jupyter import address_at, lab_process, running_lab
from tests.support.ports import unused_port
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for

LOST = "!document.getElementById('lost').hidden"


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.timeout(300)  # two starts of Jupyter and four recoveries of the page
def test_a_page_behind_jupyter_comes_back_whatever_is_done_to_the_servers_between(
    tab: Tab, tmp_path: Path, artefacts: Path
) -> None:
    """Jupyter and the page's own server are suspended and killed; who reads meanwhile notices nothing."""
    port = unused_port()
    with dsnb.start(workers=1, name="attacked-behind-jupyter") as service:
        env, training = {"DSNB_SERVICE": service.name}, Training(service)
        try:
            training.begin("a", pause=0.02, fails=True)
            with lab_process(tmp_path, port, env) as lab:
                tab.open(f"{address_at(port)}dsnb/live")
                wait_for(lambda: tab.state() == "live", what="the page to be live", timeout=20)
                attacks = [lab.pid, *page_servers(lab)]
                assert len(attacks) == 2
                for pid in attacks:
                    os.kill(pid, signal.SIGSTOP)
                    try:
                        tab.wait(LOST)
                    finally:
                        os.kill(pid, signal.SIGCONT)
                    comes_back(tab)
                tab.page.screenshot(path=artefacts / "behind_jupyter_again.png")
                os.kill(attacks[1], signal.SIGKILL)
                tab.wait(LOST)
                comes_back(tab)
                assert page_servers(lab) != attacks[1:]
                lab.kill()
                tab.wait(LOST)
            with lab_process(tmp_path, port, env):
                comes_back(tab)
        finally:
            training.end()
    assert training.failure is None


def page_servers(lab: PythonProcess) -> list[int]:
    """The processes in which Jupyter's proxy serves the page."""
    return [pid for pid in lab.children() if b"live.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def comes_back(tab: Tab) -> None:
    """The page is live again, and shows what is read now."""
    shown = {"consumed": ("[data-card='sharing']", "consumed")}
    tab.wait("document.getElementById('lost').hidden && document.querySelector('.badge')?.dataset.state === 'live'", 60)
    before = tab.values(shown)["consumed"]
    wait_for(lambda: tab.values(shown)["consumed"] > before, what="the page to show what is read", timeout=20)
