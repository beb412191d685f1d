"""From `import dsnb` to the first element of a service of two workers, in a fresh interpreter each time."""

from __future__ import annotations

import compileall
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import dsnb
from benchmarks.peers.serving import Figures, Measure, Task, serve

FIRST_CELL = """
import sys, time
began = time.perf_counter()
import dsnb
with dsnb.start(workers=2, isolation=sys.argv[1]) as svc:
    squares = dsnb.Dataset.range(10).map(lambda x: x * x)
    elements = iter(squares.apply(dsnb.distribute("parallel_epochs", svc)))
    next(elements)
    took = time.perf_counter() - began
    elements.close()
print(took)
"""


def start(isolation: str) -> Figures:
    """Seconds from import to the first element."""
    words = [sys.executable, "-c", FIRST_CELL, isolation]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=90)
    return {"start_s": float(done.stdout.splitlines()[-1])}


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    compileall.compile_dir(os.path.dirname(dsnb.__file__), quiet=2)  # as pip does when it installs, peers too
    yield lambda: start(str(task.options["isolation"]))


if __name__ == "__main__":
    serve(prepare)
