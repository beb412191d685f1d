"""Whole epochs of photographs: how many images a second, and the gap between two epochs.

An epoch is what a training loop reads: all images once, in batches of 32. Contenders whose workers stay from one epoch
to the next keep them. The gap is the time from the last batch of an epoch to the first one of the next.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from benchmarks.peers import data
from benchmarks.peers.images import READERS
from benchmarks.peers.serving import Figures, Measure, Task, serve

WORKERS = 2
IMAGES = 48 * data.IMAGES
EPOCHS = 2
"""So many are measured, after one that is not."""

Epoch = Callable[[], Iterable[Any]]


def numbered_photos(task: Task) -> list[str]:
    """The files of one epoch; each photograph comes several times."""
    files = data.photos(task)
    return [files[number % len(files)] for number in range(IMAGES)]


def epochs(begin: Epoch) -> Figures:
    """Read some epochs of batches.

    Raises:
        ValueError: an epoch does not have as many images as it should.
    """
    began = ended = 0.0
    gaps = []
    for number in range(EPOCHS + 1):
        count = 0
        for batch in begin():
            now = time.perf_counter()
            if number and not count:
                gaps.append(now - ended)
            count, ended = count + len(batch), now
        began = began or ended
        if count != IMAGES:
            raise ValueError(f"an epoch had {count} images instead of {IMAGES}")
    return {"images_per_s": EPOCHS * IMAGES / (ended - began), "gap_ms": 1000 * statistics.median(gaps)}


# ---------------------------------------------------------------------------------------------------------- the limit


def _read_all(decoder: str, files: list[str]) -> None:
    for first in range(0, len(files), data.IMAGES):
        np.stack([READERS[decoder](path) for path in files[first : first + data.IMAGES]])


def bare_processes(task: Task) -> Figures:
    """Images a second of two processes that call the function and make batches, and do nothing else."""
    files, decoder = numbered_photos(task), task.options["decoder"]
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        pool.starmap(_read_all, [(decoder, files[: data.IMAGES])] * WORKERS, chunksize=1)
        began = time.perf_counter()
        pool.starmap(_read_all, [(decoder, files * EPOCHS)] * WORKERS, chunksize=1)
        return {"images_per_s": WORKERS * EPOCHS * len(files) / (time.perf_counter() - began)}


# ---------------------------------------------------------------------------------------------------------- the peers


@contextlib.contextmanager
def torch_epochs(task: Task) -> Iterator[Epoch]:
    """PyTorch's DataLoader over a dataset by index, with workers that stay."""
    read, files = READERS[task.options["decoder"]], numbered_photos(task)

    class Photos:
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, number: int) -> Any:
            return read(files[number])

    loader = importlib.import_module("torch.utils.data").DataLoader
    made = loader(Photos(), batch_size=data.IMAGES, num_workers=WORKERS, persistent_workers=True)
    yield lambda: made


@contextlib.contextmanager
def ray_epochs(task: Task) -> Iterator[Epoch]:
    """Ray Data: batches of paths to batches of images."""
    ray = importlib.import_module("ray")
    read = READERS[task.options["decoder"]]
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    importlib.import_module("ray.data").DataContext.get_current().enable_progress_bars = False

    def decode(batch: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.stack([read(path) for path in batch["item"]])}

    files = ray.data.from_items(numbered_photos(task), override_num_blocks=IMAGES // data.IMAGES)
    made = files.map_batches(decode, batch_size=data.IMAGES)
    try:
        yield lambda: (batch["image"] for batch in made.iter_batches(batch_size=data.IMAGES))
    finally:
        ray.shutdown()


@contextlib.contextmanager
def spdl_epochs(task: Task) -> Iterator[Epoch]:
    """SPDL: a pipeline of threads, built for each epoch."""
    builder = importlib.import_module("spdl.pipeline").PipelineBuilder
    read, files = READERS[task.options["decoder"]], numbered_photos(task)

    def epoch() -> Iterator[Any]:
        stages = builder().add_source(files).pipe(read, concurrency=WORKERS).aggregate(data.IMAGES).pipe(np.stack)
        pipeline = stages.add_sink(WORKERS).build(num_threads=WORKERS)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    yield epoch


PEERS = {"torch": torch_epochs, "ray": ray_epochs, "spdl": spdl_epochs}


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    if task.kind == "limit":
        yield lambda: bare_processes(task)
        return
    with PEERS[task.kind](task) as epoch:
        yield lambda: epochs(epoch)


if __name__ == "__main__":
    serve(prepare)
