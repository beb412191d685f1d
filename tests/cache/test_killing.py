"""A process may be killed at any moment: nothing that is visible is invalid, and nothing is left over."""

from __future__ import annotations

import json

import pytest

from tests.cache.killing import PLANS
from tests.support.processes import PythonProcess


def kill(first: int, runs: int, timeout: float) -> dict[str, int]:
    """Do so many runs; how often each point was died at."""
    with PythonProcess(["-m", "tests.cache.killing", str(first), str(runs)]) as process:
        code = process.wait_for_exit(timeout=timeout)
        assert code == 0, process.describe()
        found = json.loads(process.stdout.splitlines()[-1])
        assert found["wrong"] == [], process.describe()
        assert not {"failed", "unplanned"} & set(found["died"]), process.describe()
    died: dict[str, int] = found["died"]
    return died


@pytest.mark.slow
def test_processes_killed_at_each_point_leave_a_whole_cache() -> None:
    died = kill(0, 60, timeout=100)
    assert {f"{name} {when}" for name, when in PLANS} == set(died)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_thousand_runs_with_kills_leave_a_whole_cache() -> None:
    died = kill(1000, 1000, timeout=1700)
    assert {f"{name} {when}" for name, when in PLANS} == set(died)
    assert sum(died.values()) >= 1000
