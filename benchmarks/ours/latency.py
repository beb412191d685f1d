"""How long one element takes from the end of the user's function in the worker to the reader's `next`.

The function waits a while before each element, so the reader is always there before it. The element carries
the clock's reading of the moment at which the function returned; both processes read the same clock.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

import dsnb
from benchmarks.peers import data
from benchmarks.peers.serving import Figures, Measure, Task, serve
from benchmarks.servers import service

_WARM_UP_ELEMENTS = 50


class TimestampedElements:
    """Makes elements of some bytes with a pause before each, in memory that has been used before."""

    def __init__(self, nbytes: int, pause_s: float) -> None:
        self._nbytes = nbytes
        self._pause_s = pause_s
        self._ring: list[data.Array] = []

    def __call__(self, number: Any) -> data.Array:
        if not self._ring:  # in the worker: arrays that travel with a pipeline can only be read
            self._ring = [np.ones(self._nbytes, np.uint8) for _ in range(4)]
        element = self._ring[int(number) % len(self._ring)]
        time.sleep(self._pause_s)
        element[:8].view(np.int64)[0] = time.perf_counter_ns()
        return element


def stream(nbytes: int, pause_s: float) -> dsnb.Dataset:
    """Elements that know when they were made."""
    return dsnb.Dataset.range(1 << 40).map(TimestampedElements(nbytes, pause_s))


def latency(elements: Iterator[Any], count: int) -> float:
    """The median of microseconds between making an element and having it."""
    some = islice(elements, count + _WARM_UP_ELEMENTS)
    late = [time.perf_counter_ns() - int(element[:8].view(np.int64)[0]) for element in some]
    return statistics.median(late[_WARM_UP_ELEMENTS:]) / 1000


@contextlib.contextmanager
def read_from(target: object, task: Task) -> Iterator[Measure]:
    """Read elements of the task's size."""
    distributed = dsnb.distribute("parallel_epochs", target, data_transfer_protocol=task.transfer)

    def measure() -> Figures:
        with contextlib.closing(
            iter(stream(data.batch_bytes(task), float(task.options["pause_s"])).apply(distributed))
        ) as elements:
            return {"us": latency(elements, int(task.options.get("count", 300)))}

    yield measure


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    if task.transfer == "local":
        with dsnb.start(workers=1) as svc, read_from(svc, task) as measure:
            yield measure
        return
    with service() as target, read_from(target, task) as measure:
        yield measure


if __name__ == "__main__":
    serve(prepare)
