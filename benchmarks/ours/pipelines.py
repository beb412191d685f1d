"""The pipelines of the workloads, written for dsnb."""

from __future__ import annotations

import dsnb
from benchmarks.peers import data
from benchmarks.peers.images import READERS
from benchmarks.peers.serving import Task


def dataset(task: Task) -> dsnb.Dataset:
    """A stream without an end."""
    if task.data == "scalars":
        return dsnb.Dataset.range(1 << 40).map(lambda x: x * x)
    if task.data == "samples":
        return dsnb.Dataset.from_tensor_slices(data.samples()).repeat().map(lambda x: x * 2 + 1)
    if task.data == "tokens":
        rows = data.sequences()
        return dsnb.Dataset.range(len(rows)).repeat().map(lambda i: rows[i]).padded_batch(data.PADDED)
    if task.data == "images":
        read = READERS[task.options["decoder"]]
        files = dsnb.Dataset.from_tensor_slices(data.photos(task)).repeat()
        return files.map(read, num_parallel_calls=dsnb.AUTOTUNE).batch(data.IMAGES)
    return dsnb.Dataset.from_tensor_slices(data.bank(task)).repeat()
