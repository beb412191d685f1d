from __future__ import annotations

from dsnb.worker.element_log import ReadAhead

KIB = 1 << 10


def test_more_is_kept_ready_for_a_reader_that_starved_because_the_producer_had_stopped() -> None:
    ahead = ReadAhead(400 * KIB)
    assert ahead.limit == 128 * KIB
    for expected in (256 * KIB, 400 * KIB, 400 * KIB):
        ahead.producer_stopped()
        ahead.reader_starved()
        assert ahead.limit == expected


def test_a_pipeline_that_is_slower_than_its_reader_keeps_no_more_ready() -> None:
    ahead = ReadAhead(400 * KIB)
    ahead.reader_starved()
    ahead.producer_stopped()
    ahead.reader_starved()
    ahead.reader_starved()  # once for each time that it stopped
    assert ahead.limit == 256 * KIB


def test_a_bound_below_the_usual_beginning_is_kept() -> None:
    assert ReadAhead(10 * KIB).limit == 10 * KIB


def test_the_limit_can_be_raised_and_never_beyond_the_largest_one() -> None:
    ahead = ReadAhead(400 * KIB)
    for asked, expected in ((200, 200), (150, 200), (500, 400)):
        ahead.raise_to(asked * KIB)
        assert ahead.limit == expected * KIB
