"""Runs in processes of their own that share one recording."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cache.crashing import leftovers
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for

CHUNK = 8


class Runs:
    """Starts runs over one recording, and knows what they did."""

    def __init__(self, folder: Path, length: int, pause: float, stack: ExitStack) -> None:
        self.folder = folder
        self.length = length
        self._calls = folder / "calls"
        self._arguments = [str(folder / "cache"), str(self._calls), str(length), str(pause)]
        self._stack = stack

    def start(self) -> PythonProcess:
        process = PythonProcess(["-m", "tests.cache.sharing", *self._arguments])
        return self._stack.enter_context(process)

    def calls(self) -> int:
        return self._calls.stat().st_size // 9 if self._calls.exists() else 0

    def writer(self) -> int:
        """The process that called the function last."""
        return int(self._calls.read_text().split()[-1])

    def finished(self, process: PythonProcess) -> None:
        assert process.line("READ", timeout=90).split() == ["READ", str(self.length)]
        assert process.ended() == 0


@pytest.fixture
def stack() -> ExitStack:  # type: ignore[misc]
    with ExitStack() as entered:
        yield entered


Begin = Callable[[int, float], Runs]


@pytest.fixture
def begin(tmp_path: Path, stack: ExitStack) -> Begin:
    return lambda length, pause: Runs(tmp_path, length, pause, stack)


def test_three_runs_started_together_cost_one_pass(begin: Begin) -> None:
    runs = begin(100, 0.005)
    started = [runs.start() for _ in range(3)]
    for process in started:
        runs.finished(process)
    assert runs.calls() == runs.length
    assert leftovers(runs.folder) == []


def test_when_the_writer_is_killed_a_follower_goes_on_behind_the_last_chunk(begin: Begin) -> None:
    runs = begin(300, 0.01)
    started = [runs.start() for _ in range(2)]
    wait_for(lambda: runs.calls() > 50, what="fifty elements", timeout=60)
    victim = next(process for process in started if process.pid == runs.writer())
    victim.kill()
    (survivor,) = (process for process in started if process is not victim)
    runs.finished(survivor)
    assert runs.calls() <= runs.length + CHUNK
    assert leftovers(runs.folder) == []


def test_a_writer_that_sleeps_longer_than_its_lease_is_replaced_and_wakes_up_as_a_follower(begin: Begin) -> None:
    runs = begin(300, 0.01)
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


def kill_at_random(runs: Runs, number: int, seconds: float, seed: int) -> tuple[int, int]:
    """Keep `number` runs going for a while, and kill one of them now and then; deaths and finished runs."""
    draw = random.Random(seed)
    going = [runs.start() for _ in range(number)]
    deaths = finished = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        place = draw.randrange(number)
        process = going[place]
        wait = draw.uniform(0.05, 1.0)
        ended = process.popen.poll() is not None
        if not ended and draw.random() < 0.5:
            process.kill()
            deaths += 1
            going[place] = runs.start()
        elif ended:
            runs.finished(process)
            finished += 1
            going[place] = runs.start()
        wait_until = time.monotonic() + wait
        wait_for(lambda until=wait_until: time.monotonic() >= until, what="the next blow", timeout=10)
    for process in going:
        runs.finished(process)
    return deaths, finished + number


def test_runs_that_are_killed_at_random_and_started_again_all_read_the_right_elements(begin: Begin) -> None:
    runs = begin(400, 0.01)
    deaths, finished = kill_at_random(runs, 3, 8.0, seed=1)
    assert finished >= 3
    assert runs.calls() <= runs.length + CHUNK * deaths
    assert leftovers(runs.folder) == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_eight_runs_and_a_killer_for_two_minutes(begin: Begin) -> None:
    runs = begin(4000, 0.02)
    deaths, _ = kill_at_random(runs, 8, 120.0, seed=2)
    assert deaths > 20
    assert runs.calls() <= runs.length + CHUNK * deaths
    assert leftovers(runs.folder) == []
