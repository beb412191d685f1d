"""A run that is recorded on a full disk: it is said at once, and how much is missing at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for


@pytest.mark.slow
def test_a_recording_on_a_full_disk_warns_at_once_and_tells_how_many_snapshots_are_missing(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with PythonProcess(["-m", "tests.monitor.full_disk", str(tmp_path / "disk")]) as process:
        wait_for(lambda: process.popen.poll() is not None, what="its end", timeout=100)
        if process.stdout.startswith("CANNOT"):
            pytest.skip(f"no disk may be mounted here: {process.stdout}")
        assert process.stdout.endswith("DONE\n"), process.describe()
        first, *_, last = process.wait_for_line("TOLD").split(" || ")
    assert "run.db" in first
    assert "disk is full" in first
    assert "free some space" in first
    assert "could not be written" in last
