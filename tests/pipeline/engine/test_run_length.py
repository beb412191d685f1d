"""Runs are short while elements are slow and long while they are cheap."""

from __future__ import annotations

from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH, TARGET_RUN_NS, AdaptiveRunLength


def test_it_begins_with_one_so_that_the_first_element_is_not_held_back() -> None:
    assert AdaptiveRunLength().want == 1


def test_it_doubles_while_runs_are_short_up_to_the_maximum() -> None:
    pace = AdaptiveRunLength()
    wants = []
    for _ in range(12):
        pace.note(TARGET_RUN_NS - 1)
        wants.append(pace.want)
    assert wants[:4] == [2, 4, 8, 16]
    assert wants[-1] == MAX_RUN_LENGTH


def test_the_maximum_is_an_argument() -> None:
    pace = AdaptiveRunLength(maximum=3)
    for _ in range(5):
        pace.note(0)
    assert pace.want == 3


def test_it_stays_when_a_run_takes_as_long_as_wanted_and_halves_when_it_takes_far_longer() -> None:
    pace = AdaptiveRunLength()
    for _ in range(4):
        pace.note(0)
    pace.note(TARGET_RUN_NS)
    assert pace.want == 16
    pace.note(10 * TARGET_RUN_NS)
    assert pace.want == 8


def test_it_never_wants_less_than_one() -> None:
    pace = AdaptiveRunLength()
    pace.note(10**12)
    assert pace.want == 1
