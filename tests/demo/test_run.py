"""The demo in a process of its own, as a user runs it: its figures, and what it leaves behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from dsnb.monitor.run_file import RunReader
from tests.support.processes import PythonProcess, is_running
from tests.support.requires import require_module
from tests.support.waiting import wait_for


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
        assert process.wait_for_exit(timeout=100) == 0
        figures: dict[str, Any] = json.loads(process.stdout)  # one object and nothing else
        assert list(temporary.iterdir()) == []
        with RunReader(kept) as run:
            assert {job.name for job in run.at(run.times()[-1]).jobs} == {"digits"}
        return figures, process.stderr


@pytest.fixture
def figures(whole_run: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return whole_run[0]


@pytest.mark.slow
def test_both_trainers_pass_the_accuracy(figures: dict[str, Any]) -> None:
    assert len(figures["trainers"]) == 2
    for trainer in figures["trainers"]:
        assert trainer["accuracy"] >= figures["target_accuracy"] > 0.9


@pytest.mark.slow
def test_each_element_is_produced_about_once(figures: dict[str, Any]) -> None:
    faster = max(trainer["elements"] for trainer in figures["trainers"])

    assert faster <= figures["elements_produced"] <= 1.2 * faster


def test_the_trainers_share_and_none_skips(figures: dict[str, Any]) -> None:
    hits = sum(trainer["hits"] for trainer in figures["trainers"])

    assert [trainer["skipped"] for trainer in figures["trainers"]] == [0, 0]
    assert hits >= 0.8 * min(trainer["elements"] for trainer in figures["trainers"])
    assert figures["elements_consumed"] >= 1.6 * figures["elements_produced"]
    assert figures["seconds_saved"] > 0


def test_one_trainer_is_slower_and_its_lag_shows(figures: dict[str, Any]) -> None:
    """On a machine so busy that both wait for batches it is only a little slower, but it is."""
    fast, slow = sorted(figures["trainers"], key=lambda trainer: weights(trainer["widths"]))

    assert weights(slow["widths"]) >= 40 * weights(fast["widths"]), "work for each batch, and so the slower one"
    assert slow["elements"] <= fast["elements"] + 1
    assert slow["largest_lag"] > 0


def weights(widths: list[int]) -> int:
    """Multiplications that a model takes for one sample."""
    return sum(before * after for before, after in pairwise(widths))


def test_progress_goes_to_standard_error(whole_run: tuple[dict[str, Any], str]) -> None:
    progress = whole_run[1]

    assert len([line for line in progress.splitlines() if "accuracy" in line]) >= 2
    assert "Traceback" not in progress


@pytest.mark.slow
def test_without_json_the_table_follows_the_progress(tmp_path: Path) -> None:
    with demo(tmp_path, "--batches", "60", "--accuracy", "0.1") as process:
        assert process.wait_for_exit() == 0
        first, *rest = process.stdout.splitlines()

    assert "workers started" in first
    for word in ("lr=0.5", "lr=0.2", "produced", "consumed", "saved"):
        assert any(word in line for line in rest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_missed_accuracy_is_an_error_with_advice(tmp_path: Path) -> None:
    with demo(tmp_path, "--json", "--accuracy", "1.0", "--deadline", "1") as process:
        assert process.wait_for_exit() == 1
        assert process.stdout == ""
        assert "accuracy" in process.stderr
        assert "--deadline" in process.stderr
        assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("how, code", [("interrupt", 130), ("terminate", 143)])
def test_ended_in_the_middle_it_leaves_nothing(tmp_path: Path, how: str, code: int) -> None:
    with demo(tmp_path, "--json") as process:
        wait_for(lambda: "accuracy" in process.stderr, what="the first line of progress", timeout=30)
        assert list(tmp_path.glob("dsnb-digits-*")), "the digits are unpacked there"

        getattr(process, how)()

        assert process.wait_for_exit() == code
        assert process.stdout == ""
        assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_dashboard_is_served_meanwhile_and_while_it_holds(tmp_path: Path) -> None:
    require_module("panel")
    options = ("--batches", "60", "--accuracy", "0.1", "--hold", "600")
    with demo(tmp_path, *options, dashboard=True) as process:
        url = process.wait_for_line("2 workers started").rpartition(" ")[2]
        assert "dsnb" in urlopen(url, timeout=30).read().decode()

        process.wait_for_line("the service stays open")
        assert "consumed" in process.stdout, "the table comes before the hold"
        assert urlopen(url, timeout=30).status == 200
        process.interrupt()

        assert process.wait_for_exit() == 130
        assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_with_worker_processes_it_shares_as_well_also_when_one_is_killed(tmp_path: Path) -> None:
    with demo(tmp_path, "--json", "--isolation", "process") as process:
        wait_for(lambda: "accuracy" in process.stderr, what="the first line of progress", timeout=60)
        victim, other = process.children()
        os.kill(victim, signal.SIGKILL)

        assert process.wait_for_exit(timeout=100) == 0
        figures = json.loads(process.stdout)
        assert f"process {victim} was ended by SIGKILL" in process.stderr, "the trainers were told"
        assert not is_running(other)
    assert figures["elements_consumed"] >= 1.5 * figures["elements_produced"]
    assert all(trainer["accuracy"] >= figures["target_accuracy"] for trainer in figures["trainers"])
    assert list(tmp_path.iterdir()) == []
