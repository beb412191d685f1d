"""The handwritten digits that ship with dsnb: 1,797 real images of 8x8 pixels, small enough to train on in seconds.

They lie in the package as an archive of PNG files, `<part>/<label>/<index>.png`, and are unpacked where a pipeline can
list them. DIGITS.md beside this file says where they come from, under which licence, and what was changed.
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
"""Images in the archive, train and test together."""
TRAIN_IMAGES = 1437
"""The first so many images, in the order of the source, are for training; the rest is held out.

The source keeps each writer's digits together, so the held-out ones are mostly by hands that training never saw.
"""
GREY_STEP = 15
"""What the grey values of the source, 0 to 16, are multiplied by in the files, so that a picture shows something."""


def part_of(index: int) -> Part:
    """The part that the image of that index in the source belongs to."""
    return "train" if index < TRAIN_IMAGES else "test"


def pattern(folder: Path | str, part: Part) -> str:
    """What to hand to `Dataset.list_files` for one part of the unpacked digits.

    Args:
        folder: Where `unpack` put them.
        part: "train" (1,437 images) or "test" (360).

    Example:
        >>> pattern("digits", "test")
        'digits/test/*/*.png'
    """
    return str(Path(folder) / part / "*" / "*.png")


def unpack(folder: Path | str) -> Path:
    """Unpack the digits into a folder, as `<part>/<label>/<index>.png`, with their licence.

    Args:
        folder: Made if it is not there. 1,797 files of about 130 bytes each.

    Returns:
        The folder.

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
    """The digits in a temporary folder, for the time of a `with` block."""
    with TemporaryDirectory(prefix="dsnb-digits-", ignore_cleanup_errors=True) as folder:
        yield unpack(folder)
