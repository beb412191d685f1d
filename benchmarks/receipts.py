"""What digests of contents cost, `Options(receipts=True)`: processor time of a worker and its reader, in paired runs.

`python -m benchmarks.receipts [--pairs 10] [--only KIND ...]`. The two of a pair read the same data by turns from a
worker in a process of its own, through shared memory. Digests are computed in the reader's thread: what that thread
needs more is compared with all that both processes need for a batch without digests. Before each turn, the readers'
buffers fill: how often a reader waits would change what it needs by more than digests do. The user of each copies every
batch once, as on the way to a device. Printed is the mean over the pairs with its 95 % interval.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

import dsnb
from dsnb.notebook.service import DataService

_TURNS = 10
"""How often each of a pair has its turn."""
_REFILL_S = 0.5
"""After this time, the readers' buffers are full again; after twice as long, the worker has told its processor time."""
_T_95 = {4: 2.776, 9: 2.262, 19: 2.093}
"""Quantiles of Student's distribution by degrees of freedom; others are close to 2.1."""


def photos() -> dsnb.Dataset:
    """Batches of 32 pictures, 4.8 MB: JPEG of 500x375 (60 KB) decoded, cropped, resized to 224x224, mirrored."""
    rng = np.random.default_rng(0)
    shapes = Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 6, (375, 500, 3))
    buffer = io.BytesIO()
    Image.fromarray((np.asarray(shapes) + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    photo = buffer.getvalue()

    def decode(number: int) -> tuple[np.ndarray, int]:
        left, top = number % 180, number % 55
        picture = Image.open(io.BytesIO(photo)).crop((left, top, left + 320, top + 320)).resize((224, 224))
        array = np.asarray(picture)
        return array[:, ::-1] if number % 2 else array, number

    return dsnb.Dataset.range(1 << 40).map(decode).batch(32)


def normalized() -> dsnb.Dataset:
    """Batches of 32 pictures as float32 between 0 and 1, 19 MB: one NumPy expression for each picture."""
    picture = np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8)

    def scale(number: int) -> tuple[np.ndarray, int]:
        return picture.astype(np.float32) / 255, number

    return dsnb.Dataset.range(1 << 40).map(scale).batch(32)


def parsed() -> dsnb.Dataset:
    """Batches of 256 rows with 30 numbers, 31 KB, which are parsed from lines of text."""
    lines = np.random.default_rng(0).normal(size=(1000, 30)).astype(np.float32)
    texts = [",".join(map(str, line)) for line in lines]

    def parse(number: int) -> tuple[np.ndarray, int]:
        return np.array(texts[number % len(texts)].split(","), np.float32), number

    return dsnb.Dataset.range(1 << 40).map(parse).batch(256)


def rows() -> dsnb.Dataset:
    """Batches of 256 rows with 30 numbers, 31 KB, which a function makes one by one."""

    def features(number: int) -> np.ndarray:
        return np.sqrt(np.arange(number, number + 30, dtype=np.float32))

    return dsnb.Dataset.range(1 << 40).map(features).batch(256)


def moved() -> dsnb.Dataset:
    """The same batch of 5 MB again and again: no work but to hand it over."""
    return dsnb.Dataset.from_tensors(np.ones((50, 100_000), np.uint8)).repeat()


def scalars() -> dsnb.Dataset:
    """Single numbers."""
    return dsnb.Dataset.range(1 << 40)


KINDS = ((photos, 2), (normalized, 2), (parsed, 20), (rows, 60), (moved, 4), (scalars, 50_000))
"""Kinds of data, each with the number of batches of one turn."""


def added_percent(service: DataService, data: dsnb.Dataset, batches: int) -> float:
    """How much more processor time digests cost, in percent, by one pair."""
    read = data.apply(dsnb.distribute("parallel_epochs", service))
    plain, hashing = (iter(read.with_options(dsnb.Options(receipts=receipts))) for receipts in (False, True))
    for elements in (plain, hashing):  # the readers' buffers reach their size
        _needed_ns(elements, batches)
    time.sleep(2 * _REFILL_S)
    began = _processor_s(service)
    _needed_ns(plain, _TURNS * batches)
    time.sleep(2 * _REFILL_S)
    whole = _processor_s(service) - began
    added = 0
    for turn in range(_TURNS):
        for sign, elements in ((-1, plain), (1, hashing))[:: 1 if turn % 2 else -1]:
            added += sign * _needed_ns(elements, batches)
        time.sleep(_REFILL_S)
    plain.close()
    hashing.close()
    return 100 * added / 1e9 / whole


def _needed_ns(elements: Iterator[Any], batches: int) -> int:
    began = time.thread_time_ns()
    for element in islice(elements, batches):
        np.array(element[0] if isinstance(element, tuple) else element)
    return time.thread_time_ns() - began


def _processor_s(service: DataService) -> float:
    """What this process and the worker have needed so far."""
    return time.process_time() + sum(worker.cpu_ns for worker in service.status().workers) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[], help="kinds of data")
    options = parser.parse_args()
    pairs, only = options.pairs, options.only
    with dsnb.start(workers=1, name="receipts", isolation="process") as service:
        for make, batches in (kind for kind in KINDS if not only or kind[0].__name__ in only):
            more = [added_percent(service, make(), batches) for _ in range(pairs)]
            half = _T_95.get(pairs - 1, 2.1) * statistics.stdev(more) / math.sqrt(pairs)
            print(f"{make.__name__:10} {statistics.mean(more):+6.2f} % +- {half:.2f}   {make.__doc__}", flush=True)


if __name__ == "__main__":
    main()
