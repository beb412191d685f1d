"""`AUTOTUNE` beside the best fixed `num_parallel_calls`: eight pipelines, thread and process workers, a busy machine.

    python -m benchmarks.autotune [--runs 8] [--only decode sleep] [--workers thread] [--load alone] [--write]

Each measurement is a job of its own on a service with two workers. First, each fixed setting is measured briefly; the
fastest is then measured in pairs with `AUTOTUNE`, by turns. A measurement begins after the time in which `AUTOTUNE`
should have settled. Shown are the median of the ratios with its 95 % interval (bootstrap), and the lowest ratio. All
of it takes about an hour; one pipeline with one kind of workers and one load takes two minutes.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import dsnb
from benchmarks.estimates import estimate
from benchmarks.photos import photo_folder
from benchmarks.sections import machine, table, write_section

SETTLES_S = 5.0
SECONDS = 3.0
SEARCH_S = 1.5
FIXED = (None, 2, 4, 8, 16)
LOADS = {"alone": ("alone", 0), "busy": ("beside two busy loops", 2)}
_TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, and of foolishness. " * 20

Calls = int | None
Pipeline = Callable[[dsnb.Dataset, Calls], dsnb.Dataset]


# ---- the functions; those that compute take 1 to 5 ms a call


def decode(data: bytes) -> np.ndarray[Any, Any]:
    """Decode a photograph with Pillow, and resize it."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.resize((224, 224)))


def tokenise(number: int) -> np.ndarray[Any, Any]:
    """Split a text into words and look them up, in Python."""
    words = re.findall(r"\w+|[^\w\s]", _TEXT)
    known = {word: at for at, word in enumerate(sorted(set(words)))}
    return np.array([known[word] + number % 2 for word in words])


def sleep(number: int) -> int:
    """Wait 5 ms, as a request to a server does."""
    time.sleep(0.005)
    return number


def loop(number: int) -> int:
    """Compute in Python."""
    return number + 0 * sum(each * each for each in range(20_000))


def multiply(number: int) -> np.ndarray[Any, Any]:
    """Compute in NumPy, without the GIL."""
    rows = np.full((300, 2_000), number % 7, np.float32)
    for _ in range(3):
        rows = np.sqrt(rows * rows + 1)
    first: np.ndarray[Any, Any] = rows[0]
    return first


def mix(data: bytes) -> np.ndarray[Any, Any]:
    """Decode, compute in Python and wait."""
    pixels = decode(data)
    time.sleep(0.002)
    return pixels[: 1 + loop(1)]


def vary(number: int) -> np.ndarray[Any, Any]:
    """Compute in NumPy, for a time that is different for each element."""
    rounds = 1 + int(random.Random(int(number)).expovariate(0.5))
    return np.concatenate([multiply(number) for _ in range(min(rounds, 12))])


def add_one(number: int) -> int:
    return number + 1


def _staged(numbers: dsnb.Dataset, calls: Calls) -> dsnb.Dataset:
    """Four operations, of which one is slow."""
    for function in (add_one, add_one, multiply, len):
        numbers = numbers.map(function, num_parallel_calls=calls)
    return numbers


def _of_numbers(function: Callable[..., Any]) -> Pipeline:
    return lambda numbers, calls: numbers.map(function, num_parallel_calls=calls)


def _of_photographs(function: Callable[..., Any]) -> Pipeline:
    def build(numbers: dsnb.Dataset, calls: Calls) -> dsnb.Dataset:
        photographs = [path.read_bytes() for path in sorted(photo_folder(Path(sys.executable)).glob("*.jpg"))]
        return numbers.map(functools.partial(_nth, photographs)).map(function, num_parallel_calls=calls)

    return build


def _nth(items: Sequence[bytes], number: int) -> bytes:
    return items[number % len(items)]


PIPELINES: dict[str, Pipeline] = {
    "decode": _of_photographs(decode),
    "tokenise": _of_numbers(tokenise),
    "sleep": _of_numbers(sleep),
    "Python loop": _of_numbers(loop),
    "NumPy": _of_numbers(multiply),
    "mixed": _of_photographs(mix),
    "one slow stage of four": _staged,
    "random cost": _of_numbers(vary),
}


# ---- measuring


def rate(service: dsnb.DataService, pipeline: Pipeline, calls: Calls, settles_s: float, seconds: float) -> float:
    """Elements a second of a new job, after the time in which it settles."""
    numbers = dsnb.Dataset.range(1 << 40)
    with iter(pipeline(numbers, calls).apply(dsnb.distribute("parallel_epochs", service))) as elements:
        next(elements)
        began = time.perf_counter()
        while time.perf_counter() - began < settles_s:
            next(elements)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            next(elements)
            count += 1
        return count / (time.perf_counter() - began)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep processors busy meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


def compared(pipeline: Pipeline, workers: Any, load: int, runs: int) -> list[str]:
    """The best fixed setting, and what `AUTOTUNE` reaches of its rate."""
    with dsnb.start(workers=2, isolation=workers, name="autotune") as service, busy_loops(load):
        searched = {calls: rate(service, pipeline, calls, SEARCH_S / 2, SEARCH_S) for calls in FIXED}
        best = max(searched, key=lambda calls: searched[calls])
        ratios = []
        for _ in range(runs):
            fixed = rate(service, pipeline, best, SEARCH_S, SECONDS)
            ratios.append(rate(service, pipeline, dsnb.AUTOTUNE, SETTLES_S, SECONDS) / fixed)
    reached = estimate(ratios)
    setting = "no threads" if best is None else f"{best} threads"
    share = f"{reached.value:.2f} ({reached.low:.2f} to {reached.high:.2f})"
    return [setting, f"{searched[best]:,.0f}", share, f"{min(ratios):.2f}"]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # the busy loops are ended, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--workers", nargs="+", choices=["thread", "process"], default=["thread", "process"])
    parser.add_argument("--load", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    options = parser.parse_args()
    text = (
        f"{machine()}; the load average at the start was {os.getloadavg()[0]:.0f}; {options.runs} pairs for each row."
    )
    rows = []
    for load, workers, name in product(options.load, options.workers, options.only):
        words, loops = LOADS[load]
        found = compared(PIPELINES[name], workers, loops, options.runs)
        rows.append([f"{name}, {workers} workers, {words}", *found])
        print(*rows[-1], sep=" | ", flush=True)
    columns = ["pipeline", "best fixed setting", "its rate, elements/s", "`AUTOTUNE` / best", "lowest of all runs"]
    text = f"{text}\n\n{table(columns, rows)}"
    print(text)
    if options.write:
        write_section("performance.md", "autotune", text)


if __name__ == "__main__":
    main()
