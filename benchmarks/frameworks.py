"""What tensors cost over NumPy: processor time for each batch of 5 MB, in paired runs.

`python -m benchmarks.frameworks [--runs 10] [--batches 200] [--write]`, in an environment with torch, and with JAX to
measure that too. A worker in a process of its own sends the same batch again and again through shared memory. The two
of a pair read by turns, so that other load of the machine falls on both. Printed are medians over the pairs, with the
interval that holds the middle half of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

import dsnb
from benchmarks.sections import machine, table, write_section

BATCH = (50, 100_000)
"""uint8: 5 MB."""
_TURN = 20
"""Batches that one of a pair reads before the other one does."""


def ways() -> dict[str, Callable[[dsnb.Dataset], Iterator[Any]]]:
    """How each contender iterates."""
    found: dict[str, Callable[[dsnb.Dataset], Iterator[Any]]] = {"NumPy": iter}
    if importlib.util.find_spec("torch") is not None:
        found["iter_torch"] = lambda dataset: dataset.iter_torch()
        found["to_torch"] = lambda dataset: iter(dataset.to_torch())
        found["from_numpy alone"] = _bare_calls
        found["DataLoader over from_dlpack"] = _wrapped
    if importlib.util.find_spec("jax") is not None:
        found["iter_jax"] = lambda dataset: dataset.iter_jax()
    return found


def _bare_calls(dataset: dsnb.Dataset) -> Iterator[Any]:
    """NumPy elements, beside each of which torch makes a tensor of an array that has nothing to do with them.

    What torch's own call costs here, where the work for each batch has pushed its code out of the processor's cache.
    """
    import torch

    array = np.ones(BATCH, np.uint8)
    for element in dataset:
        torch.from_numpy(array)
        yield element


def _wrapped(dataset: dsnb.Dataset) -> Iterator[Any]:
    """What a user writes without `to_torch`."""
    import torch

    class Wrapped(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch is not there for mypy
        def __iter__(self) -> Iterator[Any]:
            return map(torch.from_dlpack, iter(dataset))

    return iter(torch.utils.data.DataLoader(Wrapped(), batch_size=None, num_workers=0))


def costs_us(iterators: list[Iterator[Any]], batches: int) -> list[tuple[float, float]]:
    """For each iterator, the microseconds of this thread and of the whole process for each batch; read in turns."""
    totals = [[0, 0] for _ in iterators]
    for turn in range(batches // _TURN + 1):
        for iterator, total in zip(iterators, totals, strict=True):
            thread, process = time.thread_time_ns(), time.process_time_ns()
            for _ in islice(iterator, _TURN):
                pass
            if turn:  # in the first one, the reader's buffers reach their size
                total[0] += time.thread_time_ns() - thread
                total[1] += time.process_time_ns() - process
    count = batches // _TURN * _TURN * 1e3
    return [(thread / count, process / count) for thread, process in totals]


def spread(figures: list[float]) -> str:
    """The median, and the interval of the middle half."""
    low, middle, high = statistics.quantiles(figures, n=4)
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


def measured(runs: int, batches: int) -> str:
    """What each way of reading costs over NumPy, as a table."""
    data = dsnb.Dataset.from_tensors(np.ones(BATCH, np.uint8)).repeat()
    over: dict[str, list[tuple[float, float]]] = {}
    base: list[float] = []
    with dsnb.start(workers=1, name="frameworks", isolation="process") as service:
        for _ in range(runs):
            for name, way in ways().items():
                pair = [iterate(data.apply(dsnb.distribute("parallel_epochs", service))) for iterate in (iter, way)]
                costs = costs_us(pair, batches)
                del pair
                base.append(costs[0][0])
                over.setdefault(name, []).append((costs[1][0] - costs[0][0], costs[1][1] - costs[0][1]))
    rows = [[name, *(spread([pair[at] for pair in pairs]) for at in (0, 1))] for name, pairs in over.items()]
    text = table(
        [f"{runs} pairs of {batches} batches of 5 MB", "reading thread, us a batch", "process, us a batch"], rows
    )
    return f"{text}\n\nNumPy alone takes {statistics.median(base):.0f} us of its thread for each batch."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    figures = measured(options.runs, options.batches)
    text = f"{machine()}; the load average at the start was {load:.0f}.\n\n{figures}"
    print(text)
    if options.write:
        write_section("performance.md", "frameworks", text)


if __name__ == "__main__":
    main()
