"""What a page says when what it shows is gone, and that it recovers by itself."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

import dsnb
from tests.browser.conftest import Tab, Training, read_some
from tests.support.cluster import Cluster
from tests.support.processes import ROOT, PythonProcess, python_process
from tests.support.waiting import wait_for

SERVE = """
import dsnb
service = dsnb.start(workers=1, name="elsewhere")
print("READY", service.target)
input()
"""


@pytest.mark.slow
def test_a_killed_service_is_stale_and_a_returned_one_resumes(tab: Tab, artefacts: Path) -> None:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import snapshot_stream

    server = start_in_thread(snapshot_stream("elsewhere"))
    try:
        tab.open(server.url)
        wait_for(lambda: tab.state() == "waiting", what="the page to say that there is no service")
        assert "svc = dsnb.start" in tab.text("[data-card='no-service']")
        with python_process(SERVE) as first:
            wait_for(lambda: tab.state() == "live", what="the page to find the service", timeout=20)
            first.kill()
            wait_for(lambda: tab.state() == "stale", what="the page to say that it is stale", timeout=20)
            assert "No news for" in tab.text("[data-field='banner']")
            assert tab.page.title().startswith("stale")
            tab.page.screenshot(path=artefacts / "stale.png")
        with python_process(SERVE) as second:
            target = second.wait_for_line("READY").split()[1].removeprefix("grpc://")
            wait_for(lambda: tab.state() == "live", what="the page to find the service again", timeout=20)
            wait_for(lambda: tab.text(".service code") == target, what="the new service's address")
            assert tab.text("[data-field='banner']") == ""
            assert second.popen.stdin is not None
            second.popen.stdin.close()  # it ends by itself, and takes its connection file along
            second.wait_for_exit()
        wait_for(lambda: tab.state() == "ended", what="the page to say that it was stopped", timeout=20)
        assert tab.text("[data-field='banner']").startswith("The service was stopped at ")
    finally:
        server.stop()


@pytest.mark.slow
def test_a_restarted_dispatcher_is_found_again_and_the_job_goes_on(tab: Tab, tmp_path: Path, artefacts: Path) -> None:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import snapshot_stream

    shown = {"consumed": ("[data-card='sharing']", "consumed")}
    with Cluster(workers=1, dispatcher={"work_dir": str(tmp_path / "work")}) as cluster:
        server = start_in_thread(snapshot_stream(cluster.address, cluster.dispatcher.token))
        training = Training(cluster.service)
        try:
            training.begin("a", pause=0.02)
            read_some(cluster.service, "a", 10)
            tab.open(server.url)
            wait_for(lambda: tab.values(shown)["consumed"] >= 10, what="the page to show what is read")
            cluster.dispatcher.stop()
            wait_for(lambda: tab.state() == "ended", what="the page to say that it was stopped", timeout=20)
            before = tab.values(shown)["consumed"]
            cluster.restart_dispatcher()
            wait_for(lambda: tab.state() == "live", what="the page to find the dispatcher again", timeout=20)
            wait_for(lambda: tab.values(shown)["consumed"] > before, what="what was read meanwhile", timeout=20)
            assert tab.text("[data-field='banner']") == ""
            tab.page.screenshot(path=artefacts / "after_a_restart.png", full_page=True)
        finally:
            training.end()
            server.stop()


@pytest.mark.slow
def test_a_page_without_its_server_says_so_and_comes_back(tab: Tab, service: dsnb.DataService) -> None:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import snapshot_stream

    source = snapshot_stream(service.name)
    server = start_in_thread(source)
    tab.open(server.url)
    server.stop()
    tab.wait("!document.getElementById('lost').hidden")
    assert "lost its dashboard server" in tab.text("#lost")
    assert tab.page.title().startswith("lost")
    server = start_in_thread(source, port=server.port)
    try:
        tab.wait("document.getElementById('lost').hidden && document.querySelector('.badge')", timeout=30)
        wait_for(lambda: tab.state() == "live", what="the page to be live again", timeout=20)
    finally:
        server.stop()


@pytest.mark.slow
def test_panel_serves_the_folder_of_a_checkout(tab: Tab, service: dsnb.DataService) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["-m", "panel", "serve", str(ROOT / "dashboard"), "--port", str(port), "--address", "127.0.0.1"]
    origin = ["--allow-websocket-origin", f"127.0.0.1:{port}"]
    with PythonProcess([*arguments, *origin], env={"DSNB_SERVICE": service.name}) as panel:
        wait_for(lambda: answers(port) or panel.popen.poll() is not None, what="panel serve to listen", timeout=30)
        tab.page.goto(f"http://127.0.0.1:{port}/dashboard")
        assert "key" in tab.text("[data-card='refused']")
        [key] = wait_for(lambda: re.findall(r"\?key=(\S+)", panel.stderr), what="the key to be printed")
        tab.open(f"http://127.0.0.1:{port}/dashboard?key={key}")
        wait_for(lambda: tab.state() == "live", what="the page to find the service", timeout=20)
        assert tab.text("[data-field='service']") == service.name
        assert tab.strangers() == []
        assert tab.complaints == []
        panel.interrupt()
        panel.wait_for_exit()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_dashboard_is_not_imported_with_dsnb() -> None:
    code = "import sys, dsnb; print(*[name for name in ('panel', 'bokeh') if name in sys.modules])"
    with PythonProcess(["-c", code]) as process:
        assert process.wait_for_exit() == 0
        assert process.stdout.split() == []
    assert sys.version_info >= (3, 11)
