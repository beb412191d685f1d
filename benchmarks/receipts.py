"""What digests of contents cost, `Options(receipts=True)`: processor time of a worker and a reader, in paired runs.

`python -m benchmarks.receipts [--pairs 10]`. Both of a pair read the same data from one worker in a process of its own,
through shared memory, and which of them is first alternates. Printed is the mean with its 95 % interval.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

import dsnb
from dsnb.notebook.service import DataService

_T_95 = {5: 2.571, 9: 2.262, 19: 2.093}
"""Quantiles of Student's distribution by degrees of freedom; others are close to 2.1."""


def jpegs() -> dsnb.Dataset:
    """16 batches of 32 decoded pictures, 4.8 MB each."""
    noise = np.random.default_rng(0).integers(0, 255, (28, 28, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((224, 224)).save(buffer, "JPEG")
    picture = buffer.getvalue()

    def decode(number: int) -> tuple[np.ndarray, int]:
        return np.asarray(Image.open(io.BytesIO(picture))), number

    return dsnb.Dataset.range(16 * 32).map(decode).batch(32)


def normalized() -> dsnb.Dataset:
    """50 batches of 32 pictures as float32 between 0 and 1, 19 MB each."""
    picture = np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8)

    def scale(number: int) -> tuple[np.ndarray, int]:
        return picture.astype(np.float32) / 255, number

    return dsnb.Dataset.range(50 * 32).map(scale).batch(32)


def rows() -> dsnb.Dataset:
    """200 batches of 256 rows with 30 numbers, 31 KB each, which a function made one by one."""

    def features(number: int) -> np.ndarray:
        return np.sqrt(np.arange(number, number + 30, dtype=np.float32))

    return dsnb.Dataset.range(200 * 256).map(features).batch(256)


def moved() -> dsnb.Dataset:
    """500 times the same batch of 5 MB: no work but to hand it over."""
    return dsnb.Dataset.from_tensors(np.ones((50, 100_000), np.uint8)).repeat(500)


def scalars() -> dsnb.Dataset:
    """100,000 numbers, one by one."""
    return dsnb.Dataset.range(100_000)


def cost_s(service: DataService, data: dsnb.Dataset, *, receipts: bool) -> float:
    """The processor seconds of one epoch, of this process and the worker's."""
    read = data.apply(dsnb.distribute("parallel_epochs", service)).with_options(dsnb.Options(receipts=receipts))
    before = _cpu_s(service)
    for _ in read:
        pass
    return _cpu_s(service) - before


def _cpu_s(service: DataService) -> float:
    return time.process_time() + sum(worker.cpu_ns for worker in service.status().workers) / 1e9


def measure(service: DataService, make: Callable[[], dsnb.Dataset], pairs: int) -> None:
    """Print what digests add to the cost of one kind of data."""
    data = make()
    cost_s(service, data, receipts=True)  # the first epoch loads the pipeline
    more, without = list[float](), list[float]()
    for number in range(pairs):
        costs = {receipts: cost_s(service, data, receipts=receipts) for receipts in (number % 2 == 0, number % 2 == 1)}
        without.append(costs[False])
        more.append(100 * (costs[True] / costs[False] - 1))
    half = _T_95.get(pairs - 1, 2.1) * statistics.stdev(more) / math.sqrt(pairs)
    base, mean = statistics.median(without), statistics.mean(more)
    print(f"{make.__name__:10} {base:6.2f} s, with digests {mean:+5.1f} % +- {half:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    with dsnb.start(workers=1, name="receipts", isolation="process") as service:
        for make in (jpegs, normalized, rows, moved, scalars):
            if not options.only or make.__name__ in options.only:
                measure(service, make, options.pairs)


if __name__ == "__main__":
    main()
