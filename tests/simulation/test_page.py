"""`docs/reliability.md` is what `tools/reliability.py` writes, from the tables here and in `tests/faults/points.py`."""

from __future__ import annotations

from tests.simulation.found import FOUND
from tools import reliability


def test_the_page_of_reliability_is_what_its_script_writes() -> None:
    assert reliability.PAGE.read_text() == reliability.page(), "run `python tools/reliability.py`"


def test_each_fault_that_the_simulator_found_names_the_commits_that_mended_it() -> None:
    assert all(found.commits for found in FOUND)
