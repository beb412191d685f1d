from __future__ import annotations

import pytest

from dsnb.worker.reporting import RateMeter, seconds_until_eviction


def test_a_steady_counter_has_its_rate_and_a_change_shows_within_seconds() -> None:
    pace = RateMeter()
    for tick in range(100):
        pace.update("a", 5 * tick, now=tick / 2)
    assert pace.rate("a") == pytest.approx(10.0)
    for tick in range(100, 120):
        pace.update("a", 5 * 99, now=tick / 2)
    assert pace.rate("a") < 0.1


def test_looks_in_quick_succession_and_unknown_names_have_no_rate_of_their_own() -> None:
    pace = RateMeter()
    pace.update("a", 0, now=0.0)
    pace.update("a", 100, now=0.001)
    assert pace.rate("a") == pace.rate("b") == 0.0
    pace.update("a", 100, now=1.0)
    assert pace.rate("a") == pytest.approx(100.0)


def test_a_place_that_keeps_up_never_falls_off() -> None:
    assert seconds_until_eviction(10, -1.0) == seconds_until_eviction(10, 0.0) == 0.0
    assert 0.0 < seconds_until_eviction(-5, 2.0) < 0.1
    assert seconds_until_eviction(10, 2.0) == 5.0
