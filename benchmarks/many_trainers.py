"""What the dispatcher takes while 64 trainers read from 16 workers, for each element, and while they rest.

Workers and trainers run in four processes each, and every trainer reads from every worker over TCP, as if they were on
hosts of their own: 1,024 streams. All trainers share one pass through `CrossTrainerCache`. The dispatcher handles no
element; what it takes are the reports of trainers and workers.

    python -m benchmarks.many_trainers [--trainers 64] [--workers 16] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.estimates import estimate
from benchmarks.metrics import WORKERS, cpu_of
from benchmarks.sections import machine, table, write_section
from benchmarks.servers import command, first_line

PROCESSES = 4
WINDOWS = 5
_READY_S = 300.0
TRAINERS = """
import sys, threading
import numpy as np
import dsnb

target, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
counts = [0] * count
reading, end = threading.Event(), threading.Event()
reading.set()

def read(number):
    cache = dsnb.CrossTrainerCache(f"trainer {first + number}")
    shared = dsnb.distribute(
        "parallel_epochs", target, job_name="train", cross_trainer_cache=cache, data_transfer_protocol="tcp"
    )
    data = dsnb.Dataset.range(1000).map(lambda x: np.full(1024, x)).batch(8).repeat().apply(shared)
    with iter(data) as elements:
        for _ in elements:
            counts[number] += 1
            reading.wait()
            if end.is_set():
                return

threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for line in sys.stdin:
    if line == "rest\\n":
        reading.clear()
    print(min(counts), sum(counts), flush=True)
    if line == "end\\n":
        break
end.set()
reading.set()
for thread in threads:
    thread.join()
"""


@contextlib.contextmanager
def children(code: str, words: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of workers or trainers; they are ended."""
    with contextlib.ExitStack() as stack:
        started = []
        for arguments in words:
            child = subprocess.Popen(
                [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            started.append(stack.enter_context(child))
            stack.callback(child.kill)
        yield started


def ask(processes: Sequence[subprocess.Popen[str]], line: str) -> tuple[int, int]:
    """The least number of elements that a trainer has had, and the number of all of them."""
    for child in processes:
        if child.stdin is not None:
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
    answers = [first_line(child) for child in processes]
    if not all(answers):
        raise RuntimeError("a process of trainers has ended; its errors are above")
    least, total = zip(*(map(int, answer.split()) for answer in answers), strict=True)
    return min(least), sum(total)


def wait_until_reading(trainers: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until each trainer has had some elements."""
    deadline = time.monotonic() + _READY_S
    while ask(trainers, "count")[0] < 10:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the trainers did not all begin to read within {_READY_S:g} seconds")
        time.sleep(1.0)


def window(dispatcher: int, trainers: Sequence[subprocess.Popen[str]], seconds: float) -> tuple[float, float]:
    """The dispatcher's part of a core, and how many elements were delivered in each second."""
    began, cpu_s, count = time.monotonic(), cpu_of(dispatcher), ask(trainers, "count")[1]
    time.sleep(seconds)
    took = time.monotonic() - began
    return (cpu_of(dispatcher) - cpu_s) / took, (ask(trainers, "count")[1] - count) / took


def measure(workers: int, trainers: int, seconds: float) -> list[list[str]]:
    """Rows of what was measured while the trainers read, and while they rest."""
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as folder:
        token = Path(folder, "token")
        os.environ["DSNB_RUNTIME_DIR"] = folder
        with command("dispatcher", "--token-file", str(token), "--json") as dispatcher:
            target = str(json.loads(first_line(dispatcher))["target"])
            os.environ["DSNB_TOKEN"] = token.read_text(encoding="utf-8").strip()
            of_workers = [[target, str(workers // PROCESSES)]] * PROCESSES
            each = trainers // PROCESSES
            of_trainers = [[target, str(number * each), str(each)] for number in range(PROCESSES)]
            with children(WORKERS, of_workers) as started:
                for child in started:
                    first_line(child)
                with children(TRAINERS, of_trainers) as reading:
                    wait_until_reading(reading)
                    busy = [window(dispatcher.pid, reading, seconds) for _ in range(WINDOWS)]
                    ask(reading, "rest")
                    time.sleep(2 * seconds)  # what is in flight arrives
                    idle = [window(dispatcher.pid, reading, seconds) for _ in range(WINDOWS)]
                    ask(reading, "end")
    return [
        ["elements delivered per second", shown([rate for _, rate in busy], ",.0f")],
        ["dispatcher, % of a core meanwhile", shown([100 * share for share, _ in busy], ".1f")],
        ["dispatcher, us for each element", shown([1e6 * share / rate for share, rate in busy], ".1f")],
        ["dispatcher, % of a core while all trainers rest", shown([100 * share for share, _ in idle], ".1f")],
        ["dispatcher, us per second for each resting trainer", shown([1e6 * s / trainers for s, _ in idle], ",.0f")],
    ]


def shown(values: Sequence[float], form: str) -> str:
    """The median, with its interval."""
    found = estimate(values)
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"


def main() -> None:
    """Measure, print, and write the table into the documentation if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=64, help="a multiple of 4 (default: 64)")
    parser.add_argument("--workers", type=int, default=16, help="a multiple of 4 (default: 16)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of five measurements (default: 5)")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/performance.md")
    options = parser.parse_args()
    if options.trainers < PROCESSES or options.workers < PROCESSES or (options.trainers | options.workers) % PROCESSES:
        parser.error(f"trainers and workers run in {PROCESSES} processes each: pass multiples of {PROCESSES}")
    rows = measure(options.workers, options.trainers, options.seconds)
    text = f"{machine()}; {options.trainers} trainers, {options.workers} workers.\n\n{table(['figure', ''], rows)}"
    print(text)
    if options.write:
        write_section("performance.md", "many_trainers", text)


if __name__ == "__main__":
    main()
