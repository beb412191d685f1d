"""A script of a process of its own: a run is recorded on a disk that gets full; prints what is said of it."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import dsnb
from dsnb.monitor.run_file import RunReader
from tests.support.disks import mount
from tests.support.waiting import wait_for


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        mount(str(folder), "256k")
    except OSError as error:
        sys.stdout.write(f"CANNOT {error}")
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with dsnb.start(workers=1, name="disk") as service, service.record(folder / "run.db", every=0.1) as writer:
            wait_for(lambda: RunReader(folder / "run.db").times(), what="a snapshot")
            (folder / "filler").write_bytes(b"")
            with open(folder / "filler", "wb", buffering=0) as filler:
                fill(filler.fileno())
            wait_for(lambda: writer.missing, what="a snapshot that finds no room", timeout=30)
            wait_for(lambda: told, what="a warning of it")
        said = " || ".join(str(one.message) for one in told if "run.db" in str(one.message))
        sys.stdout.write(f"TOLD {said}\n")
    sys.stdout.write("DONE\n")


def fill(file: int) -> None:
    """Write until there is no room left."""
    for size in (4096, 1):
        try:
            while True:
                os.write(file, bytes(size))
        except OSError:
            continue


if __name__ == "__main__":
    main()
