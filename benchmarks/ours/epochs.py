"""Whole epochs of photographs, read from a service that this process starts; `benchmarks.peers.epochs` has the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import dsnb
from benchmarks.peers import data
from benchmarks.peers.epochs import WORKERS, epochs, numbered_photos
from benchmarks.peers.images import READERS
from benchmarks.peers.serving import Measure, Task, serve


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    calls = dsnb.AUTOTUNE if task.options.get("autotune") else None
    with dsnb.start(workers=WORKERS, isolation=task.options["isolation"]) as service:
        files = dsnb.Dataset.from_tensor_slices(numbered_photos(task))
        images = files.map(READERS[task.options["decoder"]], num_parallel_calls=calls)
        # The workers share an epoch; the last batch of each may be smaller.
        batches = images.batch(data.IMAGES).apply(dsnb.distribute("distributed_epoch", service))
        yield lambda: epochs(lambda: batches)


if __name__ == "__main__":
    serve(prepare)
