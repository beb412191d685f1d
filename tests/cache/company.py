"""Runs in processes of their own that share one recording, and what is done to them."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.cache.sharing import CHUNK
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for

__all__ = ["CHUNK", "Runs", "kill_at_random", "report"]


class Runs:
    """Starts runs over one recording, and knows what they did.

    Args:
        folder: Where calls are noted, and the recording is by default.
        length: Of the dataset.
        pause: Seconds that the function takes.
        stack: Ends the processes.
        where: Where the recording is.
        jumps: Whether the wall clock jumps in them.
        env: Variables for them.
    """

    def __init__(
        self,
        folder: Path,
        length: int,
        pause: float,
        stack: ExitStack,
        where: str = "",
        *,
        jumps: bool = False,
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.length = length
        self.deaths = self.finished_runs = 0
        self.told = ""
        self._calls = folder / f"calls-{length}"
        words = [where or str(folder / "cache"), str(self._calls), str(length), str(pause)]
        self._arguments = [*words, *(["jumping"] if jumps else [])]
        self._stack = stack
        self._env = env

    def start(self) -> PythonProcess:
        process = PythonProcess(["-m", "tests.cache.sharing", *self._arguments], env=self._env)
        return self._stack.enter_context(process)

    def calls(self) -> int:
        return self._calls.stat().st_size // 9 if self._calls.exists() else 0

    def calls_by_run(self) -> Counter[int]:
        """How often each process has called the function."""
        return Counter(map(int, self._calls.read_text().split()))

    def writer(self) -> int:
        """The process that called the function last."""
        return int(self._calls.read_text().split()[-1])

    def finished(self, process: PythonProcess) -> None:
        """Wait for a run; it has looked at each element."""
        assert process.wait_for_line("READ", timeout=90).split() == ["READ", str(self.length)]
        assert process.wait_for_exit() == 0
        self.finished_runs += 1
        self.told += process.stderr

    def kill(self, process: PythonProcess) -> None:
        """End a run at once."""
        process.kill()
        self.deaths += 1
        self.told += process.stderr

    def most_calls(self) -> int:
        """One for each element, and a chunk for each death."""
        return self.length + CHUNK * self.deaths


Going = list[PythonProcess]


def kill_at_random(
    runs: Runs, number: int, seconds: float, seed: int, *, meanwhile: Callable[[Going], None] | None = None
) -> None:
    """Keep `number` runs going for a while, and kill one of them now and then.

    Args:
        runs: Of what.
        number: How many at a time.
        seconds: For how long; then those that are left may finish.
        seed: Says whom, and when.
        meanwhile: Called once with those that are going, when a third is recorded and one of them writes.
    """
    draw = random.Random(seed)
    going = [runs.start() for _ in range(number)]
    begun = time.monotonic()
    while time.monotonic() - begun < (10 * seconds if meanwhile else seconds):
        place = draw.randrange(number)
        process = going[place]
        wait = draw.uniform(0.05, 1.0)
        if process.popen.poll() is not None:
            runs.finished(process)
            going[place] = runs.start()
        elif draw.random() < 0.5:
            runs.kill(process)
            going[place] = runs.start()
        if meanwhile and runs.calls() > runs.length // 3 and runs.writer() in [process.pid for process in going]:
            for each in going:
                each.wait_for_line("BEGUN")  # one that only begins while its server is away goes on without it
            meanwhile(going)
            meanwhile = None
        until = time.monotonic() + wait
        wait_for(lambda until=until: time.monotonic() >= until, what="the next blow", timeout=10)
    for process in going:
        runs.finished(process)
    assert meanwhile is None


def report(runs: Runs) -> None:
    """Tell what a long form did; shown by `pytest -rP`."""
    ended = f"{runs.deaths} deaths, {runs.finished_runs} runs finished"
    sys.stdout.write(f"{ended}, {runs.calls()} calls for {runs.length} elements\n")
