"""Ray Data: rows through `iter_rows`."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from benchmarks.peers import data
from benchmarks.peers.serving import Measure, Task, rate, serve

ROWS = 4_000_000
"""Enough for one measurement."""


def rows(task: Task) -> Any:
    ray = importlib.import_module("ray")
    if task.data == "scalars":
        return ray.data.range(ROWS).map(lambda row: {"id": row["id"] * row["id"]})
    samples = data.samples()
    return ray.data.range(ROWS // 20).map(lambda row: {"x": samples[row["id"] % len(samples)] * 2 + 1})


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    """Start Ray on this machine's cores."""
    ray = importlib.import_module("ray")
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    importlib.import_module("ray.data").DataContext.get_current().enable_progress_bars = False
    try:
        made = rows(task)
        yield lambda: rate(lambda: iter(made.iter_rows()), data.element_bytes(task), task.seconds)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    serve(prepare)
