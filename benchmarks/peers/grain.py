"""Grain: a `MapDataset` read by two worker processes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from benchmarks.peers import data
from benchmarks.peers.serving import Measure, Task, rate, serve

WORKERS = 2


def dataset(task: Task) -> Any:
    grain = importlib.import_module("grain")
    if task.data == "scalars":
        return grain.MapDataset.range(1 << 40).map(lambda x: x * x)
    if task.data == "samples":
        return grain.MapDataset.source(data.samples()).repeat().map(lambda x: x * 2 + 1)
    if task.data == "tokens":
        return grain.MapDataset.source(data.sequences()).repeat().batch(data.PADDED, batch_fn=_padded)
    return grain.MapDataset.source(data.bank(task)).repeat()


def _padded(sequences: Any) -> Any:
    np = importlib.import_module("numpy")
    out = np.zeros((len(sequences), max(map(len, sequences))), np.int32)
    for row, tokens in zip(out, sequences, strict=True):
        row[: len(tokens)] = tokens
    return out


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    """Make the dataset; each measurement starts its workers anew, before it begins to count."""
    grain = importlib.import_module("grain")
    importlib.import_module("absl.flags").FLAGS(["benchmark"], known_only=True)  # its worker processes want them read
    parallel = grain.multiprocessing.MultiprocessingOptions(num_workers=WORKERS)
    made = dataset(task).to_iter_dataset().mp_prefetch(parallel)
    yield lambda: rate(lambda: iter(made), data.element_bytes(task), task.seconds)


if __name__ == "__main__":
    serve(prepare)
