"""A small regression that every framework learns in a few steps: y is the sum of four numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import dsnb

ROWS = 256


def _rows() -> dsnb.Dataset:
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    return dsnb.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))


def batches() -> dsnb.Dataset:
    """Batches of 16 rows (x, y)."""
    return _rows().batch(16)


def distributed(service: Any, job: str) -> dsnb.Dataset:
    """The same, read from a service; batched afterwards, so that an epoch has the same number of batches."""
    return _rows().apply(dsnb.distribute("distributed_epoch", service, job_name=job)).batch(16)
