from __future__ import annotations

import pytest

from dsnb.worker.pace import Pace, seconds_until


def test_a_steady_counter_has_its_rate_and_a_change_shows_within_seconds() -> None:
    pace = Pace()
    for tick in range(100):
        pace.see("a", 5 * tick, now=tick / 2)
    assert pace.of("a") == pytest.approx(10.0)
    for tick in range(100, 120):
        pace.see("a", 5 * 99, now=tick / 2)
    assert pace.of("a") < 0.1


def test_looks_in_quick_succession_and_unknown_names_have_no_rate_of_their_own() -> None:
    pace = Pace()
    pace.see("a", 0, now=0.0)
    pace.see("a", 100, now=0.001)
    assert pace.of("a") == pace.of("b") == 0.0
    pace.see("a", 100, now=1.0)
    assert pace.of("a") == pytest.approx(100.0)


def test_a_place_that_keeps_up_never_falls_off() -> None:
    assert seconds_until(10, -1.0) == seconds_until(10, 0.0) == 0.0
    assert 0.0 < seconds_until(-5, 2.0) < 0.1
    assert seconds_until(10, 2.0) == 5.0
