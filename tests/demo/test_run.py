"""The demo in a process of its own, as a user runs it: its figures, and what it leaves behind, however it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from dsnb.demo.narration import MAX_S
from dsnb.monitor.run_file import RunReader
from tests.support.processes import PythonProcess, is_running
from tests.support.requires import require_module
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

WHOLE_S = MAX_S + 80.0
"""More than the demo takes on any machine, with its start and end."""


@contextmanager
def demo(temporary: Path, *options: str, dashboard: bool = False) -> Iterator[PythonProcess]:
    """`dsnb demo`, with a temporary folder in which everything left behind shows."""
    require_module("PIL")
    command = ["-m", "dsnb", "demo", *options, *([] if dashboard else ["--no-dashboard"])]
    with PythonProcess(command, env={"TMPDIR": str(temporary)}) as process:
        yield process


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What the demo prints for a script: its figures, and its progress."""
    temporary, kept = tmp_path_factory.mktemp("temporary"), tmp_path_factory.mktemp("kept") / "run.db"
    with demo(temporary, "--json", "--record", str(kept)) as process:
        assert process.wait_for_exit(timeout=WHOLE_S) == 0
        figures: dict[str, Any] = json.loads(process.stdout)  # one object and nothing else
        assert list(temporary.iterdir()) == []
        with RunReader(kept) as run:
            assert {job.name for job in run.at(run.times()[-1]).jobs} == {"digits"}
        return figures, process.stderr


@pytest.fixture
def figures(whole_run: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return whole_run[0]


@pytest.mark.slow
def test_it_ends_when_both_trainers_have_reached_the_aim(figures: dict[str, Any]) -> None:
    assert len(figures["trainers"]) == 2
    assert figures["reached"], f"not in {figures['seconds']:.0f} s"
    assert all(trainer["accuracy"] >= figures["target_accuracy"] > 0.85 for trainer in figures["trainers"])


@pytest.mark.slow
def test_each_element_is_produced_about_once(figures: dict[str, Any]) -> None:
    """What was produced and not consumed at the end is what the faster trainer lags."""
    fast = figures["trainers"][0]

    assert fast["elements"] <= figures["elements_produced"] <= 1.2 * (fast["elements"] + fast["lag"])


@pytest.mark.slow
def test_the_trainers_share_and_none_skips(figures: dict[str, Any]) -> None:
    hits = sum(trainer["hits"] for trainer in figures["trainers"])

    assert [trainer["skipped"] for trainer in figures["trainers"]] == [0, 0]
    assert hits >= 0.8 * min(trainer["elements"] for trainer in figures["trainers"])
    assert figures["elements_consumed"] > figures["elements_produced"]
    assert figures["seconds_saved"] > 0


@pytest.mark.slow
def test_one_trainer_is_slower_and_its_lag_shows(figures: dict[str, Any]) -> None:
    fast, slow = figures["trainers"]

    assert (fast["trainer_id"], slow["trainer_id"]) == ("fast", "slow")
    assert slow["elements"] < fast["elements"]
    assert slow["largest_lag"] > 20


@pytest.mark.slow
def test_a_worker_is_added_after_a_verdict_that_says_that_a_trainer_waits(whole_run: tuple[Any, str]) -> None:
    before, added, after = whole_run[1].partition("The demo adds a worker: svc.scale(2)")

    assert added
    # The cause that it names is the slow operation; on a machine that is busy otherwise it may be the machine.
    assert "input-bound" in before
    assert "accuracy" in after


@pytest.mark.slow
def test_progress_goes_to_standard_error(whole_run: tuple[dict[str, Any], str]) -> None:
    progress = whole_run[1]

    assert len([line for line in progress.splitlines() if "accuracy" in line]) >= 2
    assert "Traceback" not in progress


@pytest.mark.slow
def test_without_json_the_table_follows_the_progress(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "4") as process:
        assert process.wait_for_exit() == 0
        first, *rest = process.stdout.splitlines()

    assert first == "1 worker started"
    for word in ("fast", "slow", "produced", "consumed", "saved"):
        assert any(word in line for line in rest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_it_with_the_table_so_far(tmp_path: Path) -> None:
    with demo(tmp_path, "--json", "--seconds", "600") as process:
        wait_for(lambda: "accuracy" in process.stderr, what="the first line of progress", timeout=60)
        assert list(tmp_path.glob("dsnb-digits-*")), "the digits are unpacked there"

        process.interrupt()

        assert process.wait_for_exit() == 0
        assert len(json.loads(process.stdout)["trainers"]) == 2
        assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_terminated_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--json", "--seconds", "600") as process:
        wait_for(lambda: "accuracy" in process.stderr, what="the first line of progress", timeout=60)

        process.terminate()

        assert process.wait_for_exit() == 143
        assert process.stdout == ""
        assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_on_a_terminal_it_runs_until_ctrl_c_and_opens_the_dashboard(tmp_path: Path) -> None:
    """The browser is a program that writes down the address that it was asked to open."""
    require_module("panel")
    require_module("PIL")
    opened, browser = tmp_path / "opened", tmp_path / "browser.py"
    browser.write_text(f"import sys; open({str(opened)!r}, 'w').write(sys.argv[1])")
    here, there = pty.openpty()
    command = [sys.executable, "-m", "dsnb", "demo"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "DISPLAY": ":99", "BROWSER": f"{sys.executable} {browser} %s"}
    with (
        Terminal(here) as terminal,
        subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, env=environment, start_new_session=True
        ) as process,
    ):
        os.close(there)
        try:
            wait_for(lambda: "dashboard: http" in terminal.text, what="the address", timeout=60)
            wait_for(opened.exists, what="the browser to be opened", timeout=60)
            wait_for(lambda: "accuracy" in terminal.text, what="progress", timeout=60)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    url = opened.read_text()
    assert url in terminal.text
    assert "consumed" in terminal.text
    assert {path.name for path in tmp_path.iterdir()} == {opened.name, browser.name}


class Terminal:
    """Collects what is written to a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Terminal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        os.close(self._descriptor)

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(self._descriptor, 4096):
                self.text += data.decode(errors="replace")


@pytest.mark.slow
def test_the_dashboard_is_served_meanwhile(tmp_path: Path) -> None:
    require_module("panel")
    with demo(tmp_path, "--no-open", "--seconds", "600", dashboard=True) as process:
        url = process.wait_for_line("1 worker started").rpartition(" ")[2]
        assert "dsnb" in urlopen(url, timeout=30).read().decode()
        wait_for(lambda: "accuracy" in process.stdout, what="the first line of progress", timeout=60)
        process.interrupt()

        assert process.wait_for_exit() == 0
        assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_with_worker_processes_it_shares_as_well_also_when_one_is_killed(tmp_path: Path) -> None:
    kept = tmp_path / "run.db"
    with demo(tmp_path, "--json", "--isolation", "process", "--workers", "2", "--record", str(kept)) as process:
        wait_for(lambda: "accuracy" in process.stderr, what="the first line of progress", timeout=60)
        victim, other = process.children()
        os.kill(victim, signal.SIGKILL)

        assert process.wait_for_exit(timeout=WHOLE_S) == 0
        figures = json.loads(process.stdout)
        assert not is_running(other)
    assert figures["elements_consumed"] > figures["elements_produced"]
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"run.db"}
    with RunReader(kept) as run:
        events = " ".join(event.text for event in run.at(run.times()[-1]).events)
    assert f"process {victim} was ended by SIGKILL" in events
