"""What came of the conformance tests in this session, for the table to be compared with."""

from __future__ import annotations

import pytest

OUTCOMES = pytest.StashKey[list[tuple[str, str, bool]]]()
"""Module, name and whether it passed, for each test that ran so far."""
LAST = "test_the_table_says_what_this_run_found"
"""The test that compares them, and so has to run behind all others."""


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep what a report says; a test that was skipped has no outcome."""
    if report.failed or (report.when == "call" and report.passed):
        found = item.config.stash.setdefault(OUTCOMES, [])
        found.append((item.path.stem, item.name, report.passed))
