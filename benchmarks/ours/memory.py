"""How much memory a service takes beyond what its pipeline itself needs, at the most, against the budgets it was given.

The pipeline makes batches in fresh memory, faster than the reader takes them, so that everything that may be held is
held. Its own need is what a process reaches that has imported the same and runs the same pipeline without a service.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import dsnb
from benchmarks.peers.serving import Figures, Measure, Task, serve
from benchmarks.servers import pids_of, service

CACHE_BYTES = 128 << 20
CLIENT_BYTES = 16 << 20
"""What a client buffers of all its tasks together."""
_COUNT = 150
_PAUSE_S = 0.01


def pipeline(task: Task) -> dsnb.Dataset:
    """Batches in fresh memory, without an end."""
    shape, dtype = task.shape, task.dtype
    return dsnb.Dataset.range(1 << 40).map(lambda i: np.full(shape, i % 251, dtype))


def peak_mb(pid: int | str) -> float:
    """The most megabytes that a process ever had in memory."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the system does not tell")


def pipeline_only(task: Task) -> Figures:
    """What the pipeline itself needs."""
    import dsnb.notebook.start
    import dsnb.worker.__main__  # noqa: F401 - what a worker has imported counts as its own

    for _ in islice(pipeline(task), _COUNT):
        pass
    return {"mb": peak_mb("self")}


def read(task: Task, service_: Any) -> Figures:
    """What a reader needs beyond what it had before: a slow one at first, then a quick one."""
    small = dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", service_))
    for _ in small:  # whatever reading takes is imported and connected by now
        pass
    before = peak_mb("self")
    cache = dsnb.CrossTrainerCache("reader", on_lag="wait")
    distribute = dsnb.distribute(
        "parallel_epochs", service_, job_name="large", data_transfer_protocol=task.transfer, cross_trainer_cache=cache
    )
    with contextlib.closing(iter(pipeline(task).apply(distribute))) as elements:
        for _ in islice(elements, _COUNT):
            time.sleep(_PAUSE_S)
        for _ in islice(elements, 2 * _COUNT):
            pass
    return {"mb": peak_mb("self") - before, "before_mb": before}


def _run_child(words: list[str]) -> Figures:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ours.memory", sys.argv[1], *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def in_two_processes() -> Figures:
    """Megabytes above 1.1 times the budget, in the worker and in the client."""
    own = _run_child(["alone"])["mb"]
    with service("--cache-bytes", str(CACHE_BYTES)) as target:
        client = _run_child(["read", target])["mb"]
        worker = peak_mb(pids_of(("worker",))["worker"])
    return {
        "worker_mb": worker - own,
        "client_mb": client,
        "worker_over_mb": worker - own - 1.1 * CACHE_BYTES / 1e6,
        "client_over_mb": client - 1.1 * CLIENT_BYTES / 1e6,
    }


def in_one_process() -> Figures:
    """The same where reader and worker are one process."""
    own, both = _run_child(["alone"])["mb"], _run_child(["local"])
    above = both["before_mb"] + both["mb"] - own
    return {"both_mb": above, "both_over_mb": above - 1.1 * (CACHE_BYTES + CLIENT_BYTES) / 1e6}


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    yield in_one_process if task.transfer == "local" else in_two_processes


def run_as_child(task: Task, words: list[str]) -> Figures:
    """What a process of its own finds."""
    if words[0] == "alone":
        return pipeline_only(task)
    if words[0] == "read":
        return read(task, words[1])
    with dsnb.start(workers=1, cross_trainer_cache_size_bytes=CACHE_BYTES) as svc:
        return read(task, svc)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(run_as_child(Task.load(sys.argv[1]), sys.argv[2:])))
    else:
        serve(prepare)
