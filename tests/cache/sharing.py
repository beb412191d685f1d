"""One run among several that share a recording; started in interpreters of their own."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import dsnb

NBYTES = 8 * 10


def dataset(where: str, calls: str, length: int, pause: float) -> dsnb.Dataset:
    """A pipeline that notes for each call of its function which process made it."""

    def row(x: int) -> np.ndarray:
        with open(calls, "ab", buffering=0) as file:
            file.write(b"%8d\n" % os.getpid())
        time.sleep(pause)
        return np.arange(10) + x

    return dsnb.Dataset.range(length).map(row).cache(where, chunk_bytes=8 * NBYTES, lease_seconds=1.0)


def main(where: str, calls: str, length: str, pause: str) -> None:
    number = -1
    for number, element in enumerate(dataset(where, calls, int(length), float(pause))):
        assert element.tolist() == list(range(number, number + 10)), f"element {number} is {element}"
    sys.stdout.write(f"READ {number + 1}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
