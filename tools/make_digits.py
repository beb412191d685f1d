"""Make `dsnb/demo/digits.zip`, the handwritten digits that the demo trains on, from the file that scikit-learn ships.

    python tools/make_digits.py digits.csv.gz dsnb/demo/digits.zip

The input is `sklearn/datasets/data/digits.csv.gz` of any installed scikit-learn: 1,797 lines of 64 grey values (0 to
16, row by row) and the digit. dsnb itself never needs scikit-learn. The same input gives the same archive, byte for
byte, with the same version of Pillow. `dsnb/demo/DIGITS.md` says where the data come from and what this script changed.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from dsnb.demo.digits import GREY_STEP, part_of

NOTE = Path(__file__).resolve().parent.parent / "dsnb" / "demo" / "DIGITS.md"


def png(pixels: np.ndarray) -> bytes:
    """One 8x8 image as the bytes of a PNG file."""
    out = io.BytesIO()
    Image.fromarray((pixels.reshape(8, 8) * GREY_STEP).astype(np.uint8)).save(out, format="PNG", optimize=True)
    return out.getvalue()


def entry(name: str) -> zipfile.ZipInfo:
    """An entry without the time of day, so that the archive depends on the data alone."""
    return zipfile.ZipInfo(name, date_time=(1998, 7, 1, 0, 0, 0))


def main() -> None:
    """Read the two paths from the command line and write the archive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="scikit-learn's digits.csv.gz")
    parser.add_argument("archive", type=Path, help="the archive to write")
    args = parser.parse_args()

    rows = np.loadtxt(args.csv, delimiter=",", dtype=np.uint8)
    with zipfile.ZipFile(args.archive, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(entry("DIGITS.md"), NOTE.read_bytes())
        for index, row in enumerate(rows):
            archive.writestr(entry(f"{part_of(index)}/{row[-1]}/{index:04d}.png"), png(row[:-1]))
    print(f"{args.archive}: {len(rows)} images, {args.archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
