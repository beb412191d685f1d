"""Disks that are full or read-only, for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "limited", "read-only"])
def test_a_disk_that_takes_no_more_costs_no_element_and_no_entry(tmp_path: Path, kind: str) -> None:
    (tmp_path / "disk").mkdir()
    with PythonProcess(["-m", "tests.cache.disks", kind, str(tmp_path / "disk")]) as process:
        wait_for(lambda: process.popen.poll() is not None, what="its end", timeout=100)
        if process.stdout.startswith("CANNOT"):
            pytest.skip(f"no disk may be mounted here: {process.stdout}")
        assert process.stdout == "DONE\n", process.describe()
