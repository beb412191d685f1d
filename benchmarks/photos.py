"""JPEG photographs for the workload of images: crops of those that scikit-image and scikit-learn ship as samples.

They are made once, 128 of 500x375 at quality 90, as large as those of the usual collections; about 60 KB each.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.environments import ROOT, benchmarks_folder, environment_folder, python_of

COUNT = 128
WIDTH, HEIGHT, QUALITY = 500, 375, 90
SOURCE_FILES = (
    *("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"),
    *(f"skimage/data/{name}" for name in ("astronaut.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg")),
    *(f"skimage/data/{name}" for name in ("ihc.png", "retina.jpg", "motorcycle_left.png", "motorcycle_right.png")),
)


def photo_folder(python: Path) -> Path:
    """The folder of the photographs, which are made if they are not there.

    Args:
        python: An interpreter that has Pillow.
    """
    made = benchmarks_folder() / f"photos-{COUNT}-{WIDTH}x{HEIGHT}-{QUALITY}"
    if len(list(made.glob("*.jpg"))) != COUNT:
        python_of("photos")
        (packages,) = environment_folder("photos").glob("lib/python*/site-packages")
        words = [str(python), "-m", "benchmarks.photos", str(packages), str(made)]
        subprocess.run(words, check=True, timeout=120, cwd=ROOT)
    return made


def make(packages: Path, made: Path) -> None:
    """Cut the photographs."""
    from random import Random

    from PIL import Image

    made.mkdir(parents=True, exist_ok=True)
    originals = [Image.open(packages / name).convert("RGB") for name in SOURCE_FILES]
    rng = Random(0)
    for number in range(COUNT):
        original = originals[number % len(originals)]
        left, top = rng.randint(0, original.width - WIDTH), rng.randint(0, original.height - HEIGHT)
        crop = original.crop((left, top, left + WIDTH, top + HEIGHT))
        crop.save(made / f"{number:03}.jpg", quality=QUALITY)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
