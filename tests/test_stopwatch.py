"""A stopwatch adds up measurements, and tells any thread the time so far."""

from __future__ import annotations

import doctest

import dsnb.stopwatch
from dsnb.stopwatch import Stopwatch


class Clock:
    now = 100

    def __call__(self) -> int:
        return self.now


def test_the_example_is_true() -> None:
    assert doctest.testmod(dsnb.stopwatch).failed == 0


def test_measurements_add_up_and_the_present_one_counts() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.start()
    clock.now += 5
    assert (watch.ns, watch.completed_ns) == (5, 0)
    assert (watch.stop(), watch.ns, watch.completed_ns) == (5, 5, 5)
    clock.now += 70
    watch.start()
    clock.now += 2
    assert (watch.stop(), watch.ns) == (2, 7)


def test_starting_and_stopping_twice_changes_nothing() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    assert watch.stop() == 0
    watch.start()
    clock.now += 3
    watch.start()
    assert (watch.stop(), watch.stop(), watch.ns) == (3, 0, 3)


def test_time_can_be_added_during_a_measurement() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.start()
    clock.now += 3
    watch.add(40)
    assert (watch.ns, watch.stop(), watch.ns) == (43, 3, 43)
