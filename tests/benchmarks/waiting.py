"""A contender that waits for its turns in one of two ways, and measures nothing but which process it is."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from benchmarks.peers.serving import Measure, Task, serve


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    if task.kind == "spinning":
        threading.Thread(target=_spin, daemon=True).start()
    yield lambda: {"pid": os.getpid()}


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    serve(prepare)
