"""Threads are tried where the measured cost says that they may pay, and kept where they do."""

from __future__ import annotations

import pytest

from dsnb.pipeline.engine.autotune import SerialTrial

MS = 1_000_000


def trial(calls: int, wall_ms: float, cpu_ms: float) -> SerialTrial:
    return SerialTrial(calls=calls, wall_ns=int(wall_ms * MS), cpu_ns=int(cpu_ms * MS))


@pytest.mark.parametrize(
    "calls, wall_ms, cpu_ms, threads",
    [
        (1000, 50, 50, 1),  # 50 microseconds a call: not worth a hand-over
        (10, 50, 50, 4),  # 5 ms of computing: one thread a processor
        (10, 50, 1, 16),  # waits nearly all the time: as many as are allowed
        (10, 50, 20, 2),  # waits more than half of the time
    ],
)
def test_the_number_of_threads_follows_from_the_cost_of_a_call(
    calls: int, wall_ms: float, cpu_ms: float, threads: int
) -> None:
    assert trial(calls, wall_ms, cpu_ms).threads(cpus=4) == threads


def test_one_processor_leaves_computing_serial() -> None:
    assert trial(10, 50, 50).threads(cpus=1) == 1


def test_a_trial_needs_some_time_and_some_calls() -> None:
    assert not trial(1000, 1, 1).is_conclusive
    assert not trial(1, 100, 100).is_conclusive
    assert trial(10, 50, 50).is_conclusive


def test_threads_are_kept_only_if_they_gain() -> None:
    serial = trial(10, 10, 10)  # 1 ms a call
    assert serial.gained(2, 100, 100 * MS) is True  # still 1 ms a call on two threads: twice as fast
    assert serial.gained(2, 100, 200 * MS) is False  # 2 ms a call: they hinder each other
    assert serial.gained(2, 100, 1 * MS) is None  # too early to tell
    assert serial.gained(2, 50, 100 * MS) is None  # not yet: something else may need the processors at this moment
