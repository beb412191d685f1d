"""What is read: the same for all contenders, made from fixed seeds. Needs NumPy only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.serving import Task

Array = np.ndarray[Any, Any]

SAMPLES = 5_000
"""28x28 samples: 16 MB, read again and again."""
BANK_BYTES = 96 << 20
"""Batches are taken in turn from a bank of this size: larger than the processor's cache."""
SEQUENCES = 4_096
PADDED = 32
"""Sequences in one padded batch."""
IMAGES = 32
"""Images in one batch."""
SIDE = 224


def batch_bytes(task: Task) -> int:
    """Bytes of one batch."""
    return int(np.prod(task.shape)) * np.dtype(task.dtype).itemsize


def element_bytes(task: Task) -> float:
    """Bytes of one element as it arrives; of tokens without their padding."""
    if task.data == "scalars":
        return 8
    if task.data == "samples":
        return 28 * 28 * 4
    if task.data == "tokens":
        return PADDED * 4 * float(np.mean([len(x) for x in sequences()]))
    if task.data == "images":
        return IMAGES * SIDE * SIDE * 3
    return batch_bytes(task)


def samples() -> Array:
    """Float32 images of 28x28."""
    return np.random.default_rng(0).random((SAMPLES, 28, 28), np.float32)


def bank(task: Task) -> Array:
    """Different batches, at least two, that fill the bank."""
    count = max(2, -(-BANK_BYTES // batch_bytes(task)))
    shape = (count, *task.shape)
    if task.smooth:
        across = np.arange(task.shape[-1] * task.shape[-2]) // (4 * task.shape[-1])
        row = (across.reshape(task.shape[-2:]) + np.arange(count).reshape((count,) + (1,) * len(task.shape))) % 251
        return np.ascontiguousarray(np.broadcast_to(row, shape), task.dtype)
    rng = np.random.default_rng(0)
    if np.dtype(task.dtype).kind == "f":
        return rng.standard_normal(shape, np.dtype(task.dtype).type)
    return np.frombuffer(rng.bytes(count * batch_bytes(task)), task.dtype).reshape(shape).copy()


def sequences() -> list[Array]:
    """Token ids of 16 to 512, short ones more often."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.5, 0.8, SEQUENCES), 16, 512).astype(int)
    return [rng.zipf(1.3, n).clip(0, 50_000).astype(np.int32) for n in lengths]


def photos(task: Task) -> list[str]:
    """The files of the images."""
    return sorted(map(str, Path(task.options["photos"]).glob("*.jpg")))
