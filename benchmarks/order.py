"""What one order of the elements costs, `Options(deterministic=True)`, if a worker is 1.5 times slower than the others.

`python -m benchmarks.order [--pairs 10] [--workers 4 2] [--only KIND ...]`. The two passes of a pair are read by turns
from the same workers, processes of their own, through shared memory; a pair that is not measured comes first. Elements
take their time asleep, so that more workers than processors can be measured. Printed are the seconds of a pass (means
over the pairs), how much longer the ordered one took (mean with its 95 % interval), and what a pass would take if
nothing but the workers' sleep took time.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time

import numpy as np

import dsnb
from dsnb.notebook.service import DataService

_SKEW = 1.5
_T_95 = {4: 2.776, 9: 2.262, 19: 2.093}
"""Quantiles of Student's distribution by degrees of freedom; others are close to 2.1."""

KINDS = {
    "1 KB in 0.2 ms": (1 << 10, 0.0002, 20_000),
    "150 KB in 2 ms": (150 << 10, 0.002, 4_000),
    "1.2 MB in 5 ms": (1200 << 10, 0.005, 1_200),
    "4.8 MB in 10 ms": (4800 << 10, 0.01, 400),
    "784 bytes at once": (28 * 28, 0.0, 500_000),
}
"""Kinds of elements: bytes and seconds of each, and elements of a pass."""


def elements(nbytes: int, seconds: float, count: int, slow: int) -> dsnb.Dataset:
    """Elements that take some time, and more in the process with the id `slow`."""

    def make(number: int) -> np.ndarray:
        if seconds:
            time.sleep(seconds * (_SKEW if os.getpid() == slow else 1.0))
        return np.full(nbytes, number % 256, np.uint8)

    return dsnb.Dataset.range(count).map(make)


def seconds_of(data: dsnb.Dataset, service: DataService, *, ordered: bool) -> float:
    """How long a pass takes once its reader has joined."""
    read = data.with_options(dsnb.Options(deterministic=ordered or None))
    with iter(read.apply(dsnb.distribute("distributed_epoch", service))).start() as pass_:
        began = time.perf_counter()
        for _ in pass_:
            pass
        return time.perf_counter() - began


def measure(name: str, service: DataService, workers: int, pairs: int) -> str:
    """A line about one kind of elements."""
    nbytes, seconds, count = KINDS[name]
    data = elements(nbytes, seconds, count, service.status().workers[0].pid)
    turns = [[seconds_of(data, service, ordered=ordered) for ordered in (False, True)] for _ in range(pairs + 1)][1:]
    plain, ordered = (statistics.mean(times) for times in zip(*turns, strict=True))
    more = [100 * (turn[1] / turn[0] - 1) for turn in turns]
    half = _T_95.get(pairs - 1, 2.1) * statistics.stdev(more) / math.sqrt(pairs)
    ideal = seconds * count / (workers - 1 + 1 / _SKEW)
    return (
        f"{workers} workers, {name:18} {plain:6.2f} s, ordered {ordered:6.2f} s: {statistics.mean(more):+6.1f} % "
        f"+- {half:.1f}   (workers alone {ideal:.2f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 2])
    parser.add_argument("--only", nargs="*", default=list(KINDS), help="kinds of elements")
    options = parser.parse_args()
    for workers in options.workers:
        with dsnb.start(workers=workers, name="order", isolation="process") as service:
            for name in options.only:
                print(measure(name, service, workers, options.pairs), flush=True)


if __name__ == "__main__":
    main()
