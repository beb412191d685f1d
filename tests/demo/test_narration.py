"""The demo adds a worker, follows the verdict's advice afterwards, says each verdict once, and ends."""

from __future__ import annotations

import pytest

from dsnb.demo.narration import FIRST_ADDED_AFTER_S, MAX_ADDED, MAX_S, NEXT_ADDED_AFTER_S, Narrator, Pace
from dsnb.monitor.verdict import Verdict

GOOD = Verdict(level="good", cause="none", job="digits", text="Not input-bound.")
SLOW = Verdict(level="bad", cause="operation", job="digits", text="Input-bound.", subject="map(fetch)")
FULL = Verdict(level="bad", cause="processors", job="digits", text="All CPUs are busy.")


@pytest.mark.parametrize("verdict", [GOOD, SLOW])
def test_the_first_worker_is_added_whatever_the_verdict(verdict: Verdict) -> None:
    pace = Pace(limit_s=None)

    assert not pace.adds_worker(FIRST_ADDED_AFTER_S - 0.1, verdict)
    assert pace.adds_worker(FIRST_ADDED_AFTER_S, verdict)
    assert not pace.adds_worker(FIRST_ADDED_AFTER_S + 0.1, verdict)


def test_the_first_worker_is_added_after_the_first_verdict_however_late_that_comes() -> None:
    """The demo shows how the verdict changes, and a slow machine has none after eight seconds."""
    pace = Pace(limit_s=None)

    assert not pace.adds_worker(FIRST_ADDED_AFTER_S, None)
    assert pace.adds_worker(10 * FIRST_ADDED_AFTER_S, SLOW)


@pytest.mark.parametrize("verdict, added", [(GOOD, 1), (FULL, 1), (SLOW, MAX_ADDED)])
def test_further_workers_are_added_while_the_verdict_recommends_it(verdict: Verdict | None, added: int) -> None:
    pace = Pace(limit_s=None)
    for second in range(600):
        pace.adds_worker(float(second), verdict)

    assert pace.added == added


def test_on_a_terminal_it_never_ends_by_itself() -> None:
    assert not Pace(limit_s=None).is_over(1e6, learned=True)


def test_elsewhere_it_ends_when_the_effect_was_shown_and_both_have_learned() -> None:
    pace = Pace(limit_s=MAX_S, ends_when_learned=True)
    assert not pace.is_over(5.0, learned=True), "no worker has been added yet"
    assert pace.adds_worker(FIRST_ADDED_AFTER_S, GOOD)

    assert not pace.is_over(FIRST_ADDED_AFTER_S + 1, learned=True)
    assert not pace.is_over(MAX_S - 0.1, learned=False)
    assert pace.is_over(FIRST_ADDED_AFTER_S + NEXT_ADDED_AFTER_S, learned=True)
    assert pace.is_over(MAX_S, learned=False)


def test_a_verdict_is_told_once_until_it_changes() -> None:
    narrator = Narrator()

    assert narrator.line_about(()) is None
    assert "✕ Input-bound." in str(narrator.line_about((SLOW, GOOD)))
    assert narrator.line_about((SLOW,)) is None
    assert "✓ Not input-bound." in str(narrator.line_about((GOOD,)))
    assert narrator.line_about((SLOW,)) is not None
