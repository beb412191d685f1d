"""A script of a process of its own: a pipeline whose function starts processes, in a worker; prints their ids."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dsnb
from tests.support.waiting import wait_for


def forking(kind: str, note: str) -> Any:
    """A function that starts a process at the fourth element, which does as the kind says and notes its id."""

    def stay() -> None:
        Path(note).write_text(str(os.getpid()), encoding="ascii")
        while True:
            time.sleep(0.1)

    def function(x: Any) -> Any:
        if x != 3:
            return x
        if kind == "program":
            child = subprocess.Popen(["sleep", "1000"])
            Path(note).write_text(str(child.pid), encoding="ascii")
        elif os.fork() == 0:
            if kind == "returns":
                Path(note).write_text(str(os.getpid()), encoding="ascii")
            elif kind == "stays" or os.fork() == 0:  # else a daemon, which has no parent any more
                stay()
            else:
                os._exit(0)
        return x

    return function


def main() -> None:
    isolation, kind, note = sys.argv[1:]
    with dsnb.start(workers=1, isolation=isolation) as service:  # type: ignore[arg-type]  # one of the two
        numbers = dsnb.Dataset.range(10**9).map(forking(kind, note))
        elements = iter(numbers.apply(dsnb.distribute("parallel_epochs", service)))
        read = [int(next(elements)) for _ in range(1000)]
        assert read == list(range(1000))
        wait_for(lambda: Path(note).exists() and Path(note).read_text("ascii"), what="the child")
        sys.stdout.write(f"CHILD {Path(note).read_text('ascii')}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        del elements
    sys.stdout.write("STOPPED\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main()
