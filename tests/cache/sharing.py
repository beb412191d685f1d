"""One run among several that share a recording; started in interpreters of their own."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import dsnb

CHUNK = 8
NBYTES = 8 * 10
_DECADE_S = 10 * 365 * 86_400.0


def dataset(where: str, calls: str, length: int, pause: float) -> dsnb.Dataset:
    """A pipeline that notes for each call of its function which process made it."""

    def row(x: int) -> np.ndarray:
        with open(calls, "ab", buffering=0) as file:
            file.write(b"%8d\n" % os.getpid())
        time.sleep(pause)
        return np.arange(10) + x

    return dsnb.Dataset.range(length).map(row).cache(where, chunk_bytes=CHUNK * NBYTES, lease_seconds=1.0)


def let_the_clock_jump() -> None:
    """At each look the wall clock is a decade ahead, right, or a decade behind; the monotonic one goes on."""
    real = time.time
    jumps = [_DECADE_S, 0.0, -_DECADE_S]

    def jumping() -> float:
        jumps.append(jumps.pop(0))
        return real() + jumps[0]

    time.time = jumping


def main(where: str, calls: str, length: str, pause: str, clock: str = "") -> None:
    if clock:
        let_the_clock_jump()
    number = -1
    for number, element in enumerate(dataset(where, calls, int(length), float(pause))):
        assert element.tolist() == list(range(number, number + 10)), f"element {number} is {element}"
        if not number:
            sys.stdout.write("BEGUN\n")
            sys.stdout.flush()
    sys.stdout.write(f"READ {number + 1}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
