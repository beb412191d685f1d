"""Hand-over in one process: nanoseconds an element, and whether its arrays are copied."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
    """How many of a reader's arrays are not the ones that the function made, but copies."""
    held = np.arange(_ROUNDS * 1_000_000, dtype=np.uint8).reshape(_ROUNDS, 1000, 1000)
    read = dsnb.Dataset.from_tensor_slices(held).map(made).apply(dsnb.distribute("parallel_epochs", svc))
    return float(sum(element["array"].ctypes.data != element["address"] for element in read))


def made(row: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return a new array and its address."""
    array = row + 1
    return {"array": array, "address": array.ctypes.data}


if __name__ == "__main__":
    serve(prepare)
