"""Hand-over in one process: nanoseconds an element, and whether two readers are given the very same memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

import dsnb
from benchmarks.peers.serving import Figures, Measure, Task, rate, serve

_ROUNDS = 20


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    with dsnb.start(workers=1) as svc:
        numbers = dsnb.Dataset.range(1 << 40).apply(dsnb.distribute("parallel_epochs", svc))

        def measure() -> Figures:
            return {"us": 1e6 / rate(lambda: iter(numbers), 8, task.seconds)["per_s"], "copies": copies(svc)}

        yield measure


def copies(svc: dsnb.DataService) -> float:
    """How many of two trainers' elements are in memory of their own: 0 where both are given what was produced."""
    held = np.arange(_ROUNDS * 1_000_000, dtype=np.uint8).reshape(_ROUNDS, 1000, 1000)
    rows = dsnb.Dataset.from_tensor_slices(held).map(lambda x: x)

    def trainer(name: str) -> Any:
        cache = dsnb.CrossTrainerCache(name, on_lag="wait")
        read = dsnb.distribute("parallel_epochs", svc, job_name="copies", cross_trainer_cache=cache)
        return iter(rows.apply(read))

    with contextlib.closing(trainer("a")) as first, contextlib.closing(trainer("b")) as second:
        pairs = list(zip(islice(first, _ROUNDS), islice(second, _ROUNDS), strict=True))
    svc.forget("copies")
    return float(sum(not np.shares_memory(a, b) for a, b in pairs))


if __name__ == "__main__":
    serve(prepare)
