"""The demo's input pipeline, as a user would write it, from a list of files to batches that never end."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dsnb.demo.digits import pattern
from dsnb.demo.model import Floats, Labels

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset

Pixels = NDArray[np.uint8]

BATCH_SIZE = 16
MAX_DEGREES = 12.0
FETCH_S = 0.002
"""How long a file takes to arrive. The demo's files are local, and would otherwise be read in microseconds."""


def fetch(path: str) -> tuple[bytes, int]:
    """Read one file as slowly as from storage in a network; the label is the name of its directory."""
    time.sleep(FETCH_S)
    return Path(path).read_bytes(), int(Path(path).parent.name)


def decode(content: bytes, label: int) -> tuple[Pixels, int]:
    """Decode the contents of a PNG file."""
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image), label


def augment(pixels: Pixels, label: int) -> tuple[Pixels, int]:
    """Rotate the digit by up to 12 degrees and shift it by up to a pixel, at random."""
    turned = Image.fromarray(pixels).rotate(
        random.uniform(-MAX_DEGREES, MAX_DEGREES),
        resample=Image.Resampling.BILINEAR,
        translate=(random.randint(-1, 1), random.randint(-1, 1)),
    )
    return np.asarray(turned), label


def normalise(pixels: Pixels, label: int) -> tuple[Floats, int]:
    """Flatten the image and scale its grey values to about zero mean and unit variance."""
    return (pixels.reshape(-1) / np.float32(90) - np.float32(0.8)).astype(np.float32), label


def training_batches(folder: Path, seed: int = 1) -> Dataset:
    """Endless batches of augmented digits: (samples (16, 64) float32, labels (16,) int64).

    Args:
        folder: The directory of the unpacked digits.
        seed: The seed of the shuffle.
    """
    import dsnb

    return (
        dsnb.Dataset.list_files(pattern(folder, "train"))
        .map(fetch)
        .map(decode)
        .map(augment)
        .map(normalise)
        .shuffle(500, seed=seed)
        .batch(BATCH_SIZE)
        .repeat()
    )


def held_out(folder: Path) -> tuple[Floats, Labels]:
    """The held-out digits without augmentation: all samples (360, 64) and their labels (360,)."""
    import dsnb

    def read(path: str) -> tuple[Pixels, int]:
        return decode(Path(path).read_bytes(), int(Path(path).parent.name))

    plain = dsnb.Dataset.list_files(pattern(folder, "test")).map(read).map(normalise)
    samples, labels = zip(*plain, strict=True)
    return np.stack(samples), np.array(labels)
