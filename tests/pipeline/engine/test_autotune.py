"""Threads are tried where the measured cost says that they may pay, and kept where they do."""

from __future__ import annotations

import pytest

from dsnb.pipeline.engine.autotune import SerialTrial

MS = 1_000_000


def trial(calls: int, wall_ms: float, cpu_ms: float, cpus: float = 4) -> SerialTrial:
    return SerialTrial(cpus, calls, int(wall_ms * MS), int(cpu_ms * MS))


@pytest.mark.parametrize(
    "calls, wall_ms, cpu_ms, cpus, threads",
    [
        (1000, 50, 50, 4, 1),  # 50 microseconds a call: not worth a hand-over
        (10, 50, 50, 4, 4),  # 5 ms of computing: one thread a processor
        (10, 50, 48, 4, 4),  # and a few interruptions
        (10, 50, 1, 4, 16),  # waits nearly all the time: as many as are allowed
        (10, 50, 20, 4, 10),  # computes 40 % of the time
        (10, 50, 50, 1, 1),  # no second processor
        (10, 50, 43, 1, 1),
        (10, 50, 35, 1, 2),  # computes 70 % of the time, so two threads keep one processor busy
        (10, 50, 50, 0.25, 1),  # four workers share one processor
        (10, 50, 5, 0.25, 3),
    ],
)
def test_the_number_of_threads_follows_from_the_cost_of_a_call_and_the_processors(
    calls: int, wall_ms: float, cpu_ms: float, cpus: float, threads: int
) -> None:
    assert trial(calls, wall_ms, cpu_ms, cpus).threads == threads


def test_a_trial_needs_some_time_and_some_calls() -> None:
    assert not trial(1000, 1, 1).is_conclusive
    assert not trial(1, 100, 100).is_conclusive
    assert not trial(10, 50, 50).is_conclusive
    assert trial(10, 100, 100).is_conclusive
    assert trial(10, 20, 1).is_conclusive


def test_threads_are_kept_only_if_they_gain() -> None:
    serial = trial(10, 10, 10)  # 1 ms a call
    assert serial.gained(2, 100, 100 * MS) is True  # still 1 ms a call on two threads: twice as fast
    assert serial.gained(2, 100, 200 * MS) is False  # 2 ms a call: they hinder each other
    assert serial.gained(2, 100, 1 * MS) is None  # too early to tell
    assert serial.gained(2, 50, 100 * MS) is None  # not yet: something else may need the processors at this moment
