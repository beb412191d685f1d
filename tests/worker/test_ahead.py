from __future__ import annotations

from dsnb.worker.ahead import Ahead

KIB = 1 << 10


def test_more_is_kept_ready_for_a_reader_that_starved_because_the_producer_had_stopped() -> None:
    ahead = Ahead(400 * KIB)
    assert ahead.now == 128 * KIB
    for expected in (256 * KIB, 400 * KIB, 400 * KIB):
        ahead.stop()
        ahead.starve()
        assert ahead.now == expected


def test_a_pipeline_that_is_slower_than_its_reader_keeps_no_more_ready() -> None:
    ahead = Ahead(400 * KIB)
    ahead.starve()
    ahead.stop()
    ahead.starve()
    ahead.starve()  # once for each time that it stopped
    assert ahead.now == 256 * KIB


def test_a_bound_below_the_usual_beginning_is_kept() -> None:
    assert Ahead(10 * KIB).now == 10 * KIB
