"""A reader beside a trainer that runs pure Python without a pause, in the same process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dsnb
from benchmarks.ours.pipelines import dataset
from benchmarks.peers import data
from benchmarks.peers.serving import Figures, Measure, Task, serve
from benchmarks.servers import service

_WORK_S = 0.002
_WARM_S = 0.5


class CountingReader(threading.Thread):
    """Reads until it is told to stop."""

    def __init__(self, elements: Iterator[Any]) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.stopped = False
        self._elements = elements

    def run(self) -> None:
        for _ in self._elements:
            self.count += 1
            if self.stopped:
                return


def busy(seconds: float) -> None:
    """A training step in pure Python: the interpreter is never let go of by itself."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(i * i for i in range(1000))


def arrival_rate(read: dsnb.Dataset, seconds: float, meanwhile: Callable[[float], None]) -> float:
    """Elements a second that reach a thread while this one does something else."""
    elements = iter(read)
    next(elements)
    reader = CountingReader(elements)
    reader.start()
    meanwhile(_WARM_S)
    before, began = reader.count, time.perf_counter()
    meanwhile(seconds)
    per_s = (reader.count - before) / (time.perf_counter() - began)
    reader.stopped = True
    reader.join(30)
    elements.close()
    return per_s


def work(x: Any) -> data.Array:
    """Two milliseconds of NumPy on this thread's own clock."""
    until = time.thread_time() + _WORK_S
    noise = np.full(20_000, float(x))
    while time.thread_time() < until:
        noise = np.sqrt(noise + 1)
    return noise[:1000]


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    with service(tls=bool(task.options.get("tls"))) as target:
        distribute = dsnb.distribute(
            "parallel_epochs", target, data_transfer_protocol=task.transfer, compression=task.compression
        )

        def frames() -> Figures:
            return {"per_s": arrival_rate(dataset(task).apply(distribute), task.seconds, busy)}

        def worker() -> Figures:
            worked = dsnb.Dataset.range(1 << 40).map(work).apply(distribute)
            alone = arrival_rate(worked, task.seconds, time.sleep)
            return {"share": arrival_rate(worked, task.seconds, busy) / alone}

        yield worker if task.kind == "beside worker" else frames


if __name__ == "__main__":
    serve(prepare)
