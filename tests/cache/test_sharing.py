"""Runs in processes of their own that share one recording."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsnb.cache.recordings.catalogue import entries
from tests.cache.company import CHUNK, Runs, kill_at_random, report
from tests.cache.scenes import damaged, leftovers
from tests.support.waiting import wait_for


@pytest.fixture
def stack() -> ExitStack:  # type: ignore[misc]
    with ExitStack() as entered:
        yield entered


Begin = Callable[[int, float], Runs]


@pytest.fixture
def begin(tmp_path: Path, stack: ExitStack) -> Begin:
    return lambda length, pause: Runs(tmp_path, length, pause, stack)


@pytest.mark.slow
def test_three_runs_started_together_cost_one_pass(begin: Begin) -> None:
    runs = begin(100, 0.005)
    started = [runs.start() for _ in range(3)]
    for process in started:
        runs.finished(process)
    assert runs.calls() == runs.length
    assert leftovers(runs.folder) == []


@pytest.mark.slow
def test_when_the_writer_is_killed_a_follower_goes_on_behind_the_last_chunk(begin: Begin) -> None:
    runs = begin(200, 0.01)
    started = [runs.start() for _ in range(2)]
    wait_for(lambda: runs.calls() > 50, what="fifty elements", timeout=60)
    victim = next(process for process in started if process.pid == runs.writer())
    victim.kill()
    (survivor,) = (process for process in started if process is not victim)
    runs.finished(survivor)
    assert runs.calls() <= runs.length + CHUNK
    assert leftovers(runs.folder) == []


@pytest.mark.slow
def test_a_writer_that_sleeps_longer_than_its_lease_is_replaced_and_wakes_up_as_a_follower(begin: Begin) -> None:
    runs = begin(200, 0.01)
    started = [runs.start() for _ in range(2)]
    wait_for(lambda: runs.calls() > 50, what="fifty elements", timeout=60)
    sleeper = next(process for process in started if process.pid == runs.writer())
    (other,) = (process for process in started if process is not sleeper)
    os.kill(sleeper.pid, signal.SIGSTOP)
    try:
        runs.finished(other)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    runs.finished(sleeper)
    # What the sleeper had not committed, and the element that it was about to make.
    assert runs.calls() <= runs.length + CHUNK + 1
    late = runs.start()
    runs.finished(late)
    assert leftovers(runs.folder) == []


@pytest.mark.slow
def test_a_wall_clock_that_jumps_by_decades_makes_nobody_early_or_late(tmp_path: Path, stack: ExitStack) -> None:
    runs = Runs(tmp_path, 100, 0.01, stack, jumps=True)
    started = [runs.start() for _ in range(2)]
    wait_for(lambda: runs.calls() > 30, what="thirty elements", timeout=60)
    victim = next(process for process in started if process.pid == runs.writer())
    victim.kill()
    (survivor,) = (process for process in started if process is not victim)
    late = runs.start()
    for process in (survivor, late):
        runs.finished(process)
    assert runs.calls() <= runs.length + CHUNK
    assert [*leftovers(runs.folder), *damaged(runs.folder)] == []


@pytest.mark.slow
def test_two_pipelines_may_be_recorded_in_one_folder_at_once(begin: Begin) -> None:
    both = [begin(100, 0.005), begin(120, 0.005)]
    started = [(runs, runs.start()) for _ in range(2) for runs in both]
    for runs, process in started:
        runs.finished(process)
    assert [runs.calls() for runs in both] == [100, 120]
    found = entries(str(both[0].folder / "cache"))
    assert sorted((entry.state, entry.elements) for entry in found) == [("complete", 100), ("complete", 120)]
    assert [*leftovers(both[0].folder), *damaged(both[0].folder)] == []


@pytest.mark.slow
def test_runs_that_are_killed_at_random_and_started_again_all_read_the_right_elements(begin: Begin) -> None:
    runs = begin(300, 0.01)
    kill_at_random(runs, 3, 6.0, seed=1)
    assert runs.deaths >= 1
    assert runs.finished_runs >= 3
    assert runs.calls() <= runs.most_calls()
    assert [*leftovers(runs.folder), *damaged(runs.folder)] == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_eight_runs_and_a_killer_for_two_minutes(begin: Begin) -> None:
    runs = begin(4000, 0.02)
    kill_at_random(runs, 8, 120.0, seed=2)
    report(runs)
    assert runs.deaths > 20
    assert runs.finished_runs >= 8
    assert runs.calls() <= runs.most_calls()
    assert [*leftovers(runs.folder), *damaged(runs.folder)] == []
