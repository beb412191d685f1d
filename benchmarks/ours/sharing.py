"""One pass of preprocessing shared by 1, 2, 4, 8 and 16 trainers, each in a process of its own.

The pipeline makes so many elements a second and no more; what its function cost so far travels in each element. So the
trainers tell how fast each was served, and what the preprocessing of the elements that they saw cost altogether.

The same function runs at the same pace in a process that has nothing to do with the service, too: what it costs more
there beside many trainers is the machine's (caches and memory are shared by all that run), not that of sharing.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dsnb
from benchmarks.contender import Contender, started
from benchmarks.peers import data
from benchmarks.peers.serving import Figures, Measure, Task, read_for, serve
from benchmarks.servers import service

_SETTLE_S = 0.7
_DEADLINE_S = 180.0


class Paced:
    """Makes elements at a steady pace, with real work for half a millisecond or more in each."""

    def __init__(self, task: Task) -> None:
        self._period_s = 1 / float(task.options["per_s"])
        self._nbytes = data.batch_bytes(task)
        self._due = 0.0
        self.spent_ns = 0

    def __call__(self, number: Any) -> dict[str, Any]:
        began = time.thread_time_ns()
        noise = np.arange(20_000, dtype=np.float32)
        for _ in range(10):
            noise = np.sqrt(noise + 1)
        element = np.full(self._nbytes, int(number) % 251, np.uint8)
        self.spent_ns += time.thread_time_ns() - began
        now = time.monotonic()
        self._due = max(self._due + self._period_s, now)
        time.sleep(self._due - now)
        return {"x": element, "number": number, "spent_ns": self.spent_ns}


@contextlib.contextmanager
def trainer(task: Task) -> Iterator[Measure]:
    """One of them."""
    cache = dsnb.CrossTrainerCache(str(task.options["trainer"]), timeout=_DEADLINE_S)
    read = dsnb.from_dataset_id(
        "parallel_epochs",
        str(task.options["target"]),
        "paced",
        job_name="shared",
        data_transfer_protocol=task.transfer,
        cross_trainer_cache=cache,
    )
    with contextlib.closing(iter(read)) as elements:
        next(elements)

        def measure() -> Figures:
            read_for(elements, _SETTLE_S, 1)  # what is buffered, and what the window still had
            first = next(elements)
            count, took, _ = read_for(_one_by_one(elements), task.seconds, 1)
            last = next(elements)
            made = int(last["number"]) - int(first["number"])
            spent = int(last["spent_ns"]) - int(first["spent_ns"])
            return {"per_s": count / took, "made_us": spent / made / 1000, "skipped": made - 1 - count}

        yield measure


def in_separate_process(task: Task) -> Figures:
    """What the function costs in a process apart."""
    make = Paced(task)
    count = round(task.seconds * float(task.options["per_s"]))
    for number in range(count):
        make(number)
    return {"apart_us": make.spent_ns / count / 1000}


def _one_by_one(elements: Iterator[Any]) -> Iterator[Any]:
    """Hold no element back while the next is waited for."""
    for _ in elements:
        yield None


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    """Trainers take part as contenders of this one; each measurement asks the first k of them, all at once."""
    if task.kind == "trainer":
        with trainer(task) as measure:
            yield measure
        return
    if task.kind == "apart":
        yield lambda: in_separate_process(task)
        return
    counts = [int(k) for k in task.options["k"]]
    with service("--cache-bytes", "64MiB") as target:
        dsnb.register_dataset(target, dsnb.Dataset.range(1 << 40).map(Paced(task)), dataset_id="paced")
        trainers = [
            replace(task, kind="trainer", options={**task.options, "target": target, "trainer": f"trainer {number}"})
            for number in range(max(counts))
        ]
        tasks = [*trainers, replace(task, kind="apart")]
        with started(Path(sys.executable), "benchmarks.ours.sharing", tasks, _DEADLINE_S) as contenders:
            *readers, separate_process = contenders
            yield lambda: {
                name: value for k in counts for name, value in measure_together(readers[:k], separate_process).items()
            }


def measure_together(trainers: list[Contender], separate_process: Contender) -> Figures:
    """What some trainers find who read at the same time, and what the function costs apart meanwhile."""
    for one in (*trainers, separate_process):
        one.start_measurement()
    found = [one.read_result() for one in trainers]
    k = len(trainers)
    return {
        f"apart_us_{k}": separate_process.read_result()["apart_us"],
        f"per_s_{k}": statistics.median(one["per_s"] for one in found),
        f"slowest_{k}": min(one["per_s"] for one in found),
        f"made_us_{k}": statistics.median(one["made_us"] for one in found),
        f"skipped_{k}": sum(one["skipped"] for one in found),
    }


if __name__ == "__main__":
    serve(prepare)
