"""Several trainers that read photographs at once: with dsnb from one shared pass, else each from a loader of its own.

Each trainer is a process. The figure is the rate of the slowest one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dsnb
from benchmarks.contender import Contender, started
from benchmarks.ours.pipelines import dataset
from benchmarks.peers import data
from benchmarks.peers.serving import Figures, Measure, Task, rate, serve

_DEADLINE_S = 180.0
_PYTHON = Path(sys.executable)


@contextlib.contextmanager
def trainer(task: Task) -> Iterator[Measure]:
    """One trainer of the shared pass."""
    read = dsnb.from_dataset_id(
        "parallel_epochs",
        str(task.options["target"]),
        "photos",
        job_name="shared",
        cross_trainer_cache=dsnb.CrossTrainerCache(str(task.options["trainer"])),
    )
    yield lambda: rate(lambda: iter(read), data.element_bytes(task), task.seconds)


def together(trainers: list[Contender]) -> Figures:
    """Let all of them measure at once."""
    for one in trainers:
        one.start_measurement()
    return {"slowest_per_s": min(one.read_result()["per_s"] for one in trainers)}


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    if task.kind == "trainer":
        with trainer(task) as measure:
            yield measure
        return
    numbers = range(int(task.options["k"]))
    if task.kind == "loaders":
        with started(
            _PYTHON, "benchmarks.peers.torch", [replace(task, kind="rate") for _ in numbers], _DEADLINE_S
        ) as trainers:
            yield lambda: together(trainers)
        return
    with dsnb.start(workers=2, isolation="process") as service:
        dsnb.register_dataset(service.target, dataset(task), dataset_id="photos")
        told = [
            replace(task, kind="trainer", options={**task.options, "target": service.target, "trainer": f"trainer {n}"})
            for n in numbers
        ]
        with started(_PYTHON, "benchmarks.ours.trainers", told, _DEADLINE_S) as trainers:
            yield lambda: together(trainers)


if __name__ == "__main__":
    serve(prepare)
