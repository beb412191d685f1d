"""A recorded run is played back with a time slider."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dsnb
from dsnb.monitor.run_file import RunReader
from tests.browser.conftest import Tab, Training, read_some
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for


@pytest.mark.slow
def test_a_recorded_run_is_played_and_wound_back(
    tab: Tab, service: dsnb.DataService, training: Training, tmp_path: Path, artefacts: Path
) -> None:
    from dsnb.dashboard.server import replay_in_thread

    kept = service.record(tmp_path / "run.db", every=0.2)
    training.begin("a", pause=0.01)
    read_some(service, "a", 100)
    training.end()
    kept.stop()
    with RunReader(tmp_path / "run.db") as reader:
        times = reader.times()
        last = reader.at(times[-1]).job("train")
        server = replay_in_thread(reader)
        try:
            tab.open(server.url)
            wait_for(lambda: tab.state() == "replay", what="the replay")
            assert tab.page.query_selector("[data-do]") is None
            wind(tab, times[-1])
            assert last is not None
            shown = {"elements": ("tr[data-trainer='a']", "elements")}
            wait_for(lambda: tab.values(shown)["elements"] == last.consumed, what="the end of the run")
            tab.page.screenshot(path=artefacts / "replay.png", full_page=True)
            wind(tab, times[0])
            wait_for(lambda: tab.values(shown)["elements"] < last.consumed, what="an earlier time of the run")
            assert tab.complaints == []
        finally:
            server.stop()


@pytest.mark.slow
def test_the_command_plays_a_file_and_refuses_what_is_none(tab: Tab, service: dsnb.DataService, tmp_path: Path) -> None:
    kept = service.record(tmp_path / "run.db", every=0.2)
    wait_for(lambda: len(times(tmp_path / "run.db")) > 2, what="some snapshots in the file")
    kept.stop()
    command = ["-m", "dsnb", "dashboard", "--no-open", "--json", "--replay"]
    with PythonProcess([*command, str(tmp_path / "none.db")]) as refused:
        assert refused.wait_for_exit() == 1
        assert "there is no file" in refused.stderr
    with PythonProcess([*command, str(tmp_path / "run.db")]) as played:
        tab.open(json.loads(played.wait_for_line("{"))["url"])
        wait_for(lambda: tab.state() == "replay", what="the replay")
        assert tab.text("[data-field='service']") == service.name
        tab.page.goto("about:blank")
        played.interrupt()
        played.wait_for_exit()


def times(path: Path) -> list[float]:
    with RunReader(path) as reader:
        return reader.times()


def wind(tab: Tab, to: float) -> None:
    """Drag the slider."""
    tab.page.evaluate(
        "to => { const s = document.querySelector('[data-pick=seek]'); s.value = to;"
        " s.dispatchEvent(new Event('input', {bubbles: true})); }",
        to,
    )
