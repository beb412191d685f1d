"""The handwritten digits that ship with dsnb: 1,797 real images of 8x8 pixels, small enough to train on in seconds.

The package contains them as an archive of PNG files, `<part>/<label>/<index>.png`, unpacked for pipelines to list.
DIGITS.md in this directory documents the source, the licence and the changes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

Part = Literal["train", "test"]

IMAGES = 1797
"""The number of images in the archive, train and test together."""
TRAIN_IMAGES = 1437
"""The first 1,437 images, in the order of the source, are for training; the rest is held out.

The source keeps each writer's digits together, so most held-out images are by writers absent from the training set.
"""
GREY_STEP = 15
"""The factor by which the source's grey values, 0 to 16, are multiplied in the files, to be visible as pictures."""


def part_of(index: int) -> Part:
    """The part that the image with this index in the source belongs to."""
    return "train" if index < TRAIN_IMAGES else "test"


def pattern(folder: Path | str, part: Part) -> str:
    """The `Dataset.list_files` pattern that matches one part of the unpacked digits.

    Args:
        folder: The directory that `unpack` wrote to.
        part: "train" (1,437 images) or "test" (360).

    Example:
        >>> pattern("digits", "test")
        'digits/test/*/*.png'
    """
    return str(Path(folder) / part / "*" / "*.png")


def unpack(folder: Path | str) -> Path:
    """Unpack the digits into a directory, as `<part>/<label>/<index>.png`, with their licence.

    Args:
        folder: The directory, created if missing. Receives 1,797 files of about 130 bytes each.

    Returns:
        The directory as a path.

    Example:
        >>> with TemporaryDirectory() as folder:
        ...     len(list(unpack(folder).glob("test/*/*.png")))
        360
    """
    source = files("dsnb.demo") / "digits.zip"
    with as_file(source) as path, zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return Path(folder)


@contextmanager
def unpacked() -> Iterator[Path]:
    """Unpack the digits into a temporary directory that is removed at the end of the `with` block."""
    with TemporaryDirectory(prefix="dsnb-digits-", ignore_cleanup_errors=True) as folder:
        yield unpack(folder)
