"""A script of a process of its own: what dsnb says where it may open few files, or start few threads.

Prints a line of JSON for each attempt: what was tried, and the error's class and text, or null.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import dsnb


def tried(what: str, attempt: Callable[[], Any]) -> None:
    """Make an attempt, and print what came of it."""
    error = None
    try:
        attempt()
    except Exception as caught:  # noqa: BLE001 - whatever comes is what the test looks at
        error = [type(caught).__name__, isinstance(caught, dsnb.errors.DsnbError), str(caught)]
    sys.stdout.write(json.dumps([what, error]) + "\n")


@contextmanager
def files(more: int) -> Iterator[None]:
    """Let this process open so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    filling: list[int] = []
    with suppress(OSError):
        while True:
            filling.append(os.open(os.devnull, os.O_RDONLY))
    for descriptor in filling[len(filling) - more :]:
        os.close(descriptor)
    try:
        yield
    finally:
        for descriptor in filling[: len(filling) - more]:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def few_files(isolation: Any) -> None:
    """Start and read with hardly any files left, in a process that has used all of it before."""
    for name in dir(dsnb):  # each is imported when it is used first
        getattr(dsnb, name)
    with dsnb.start(workers=1, isolation=isolation, name="before") as service:
        list(dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", service)))
    for more in range(4):  # with a few more, it takes gRPC ten seconds to say that a connection cannot be made
        with files(more):
            name = f"few-{more}"  # where nothing can be opened, a name cannot be given back
            tried(f"start with {more}", lambda name=name: dsnb.start(1, isolation=isolation, name=name).stop())
    attempts = [("shared_memory", more) for more in range(1, 6)]  # at each it is another step that finds no file
    if isolation == "thread":
        attempts += [("shared_memory", 0), ("local", 0)]
    with dsnb.start(workers=1, isolation=isolation, name="read") as service:
        numbers = dsnb.Dataset.range(50).map(lambda x: np.full(20_000, x))
        for transfer, more in attempts:
            read = numbers.apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol=transfer))
            with files(more):
                tried(f"{transfer} with {more}", lambda read=read: list(read))
        with tempfile.TemporaryDirectory() as folder, files(0):
            tried("record", lambda: service.record(f"{folder}/run.db"))
            tried("report", lambda: service.report(f"{folder}/run.html"))
            tried("cache", lambda: list(dsnb.Dataset.range(5).cache(f"{folder}/cache")))
            tried("lines", lambda: list(dsnb.TextLineDataset(__file__)))
            tried("writer", lambda: dsnb.TFRecordWriter(f"{folder}/records"))


class Limited:
    """Leaves the process that unpickles it room for a few threads."""

    def __reduce__(self) -> Any:
        return limit_threads, ()

    def __call__(self, x: Any) -> Any:
        return x + 1


def limit_threads() -> Limited:
    addresses = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + (96 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    return Limited()


def few_threads(where: str) -> None:
    """Ask for more threads than the system starts, here or in a worker's process."""
    if where == "here":
        with warnings.catch_warnings():
            mapped = dsnb.Dataset.range(5000).map(lambda x: x + 1, num_parallel_calls=1000)
            limit_threads()
            elements = iter(mapped)
            tried("map", lambda: next(elements))
            tried("goes on", lambda: list(elements))
            ahead = [iter(dsnb.Dataset.range(9).prefetch(2)) for _ in range(100)]
            tried("prefetch", lambda: list(map(next, ahead)))
        return
    with dsnb.start(workers=1, isolation="process") as service:
        mapped = dsnb.Dataset.range(5000).map(Limited(), num_parallel_calls=1000)
        read = iter(mapped.apply(dsnb.distribute("parallel_epochs", service)))
        tried("map", lambda: next(read))
        tried("goes on", lambda: next(read))


if __name__ == "__main__":
    {"files": few_files, "threads": few_threads}[sys.argv[1]](sys.argv[2])
    sys.stdout.flush()
    os._exit(0)  # what could not be started need not be stopped
