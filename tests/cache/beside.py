"""One reader of a recording in a process of its own, for tests of what several do to each other.

python -m tests.cache.beside WHAT WHERE CALLS LENGTH
"""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

import dsnb
from dsnb.errors import CacheWarning
from dsnb.storage.failpoints import failpoint_hook

WIDTH = 1000
CHUNK = 8
_NOBODY = 65534
LEASE_S = 60.0
"""Longer than any test waits: who is served within it did not wait for the lease to run out."""


def dataset(where: str, calls: str, length: int, lease_s: float = LEASE_S) -> dsnb.Dataset:
    """A pipeline that notes each call of its function in a file."""

    def row(x: int) -> np.ndarray:
        with open(calls, "ab", buffering=0) as file:
            file.write(b".")
        return np.arange(WIDTH) + x

    ds = dsnb.Dataset.range(length).map(row)
    return ds.cache(where or None, chunk_bytes=8 * WIDTH * CHUNK, lease_seconds=lease_s)


def check(element: np.ndarray, index: int) -> None:
    assert (element[0], element[-1], len(element)) == (index, index + WIDTH - 1, WIDTH), f"element {index}: {element}"


def read(elements: Iterator[np.ndarray], first: int, last: int) -> None:
    """Read the elements up to `last` and compare each with what it should be."""
    for index in range(first, last):
        check(next(elements), index)


def whole(where: str, calls: str, length: int) -> None:
    """Read all."""
    elements = iter(dataset(where, calls, length))
    read(elements, 0, length)
    assert next(elements, None) is None


def slow(where: str, calls: str, length: int) -> None:
    """Read one element, and the others when there is something on standard input."""
    elements = iter(dataset(where, calls, length))
    read(elements, 0, 1)
    sys.stdout.write("HOLDS\n")
    input()
    read(elements, 1, length)


def forking(where: str, calls: str, length: int) -> None:
    """Read a few elements and fork; the child reads all while the parent does nothing but wait for it."""
    ds = dataset(where, calls, length)
    elements = iter(ds)
    read(elements, 0, 3)
    child = os.fork()
    if not child:
        with suppress(BaseException):
            again = iter(ds)
            read(again, 0, length)
            again.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    read(elements, 3, length)


def forks(where: str, calls: str, length: int) -> None:
    """Fork again and again while another thread reads and records; each child reads all."""
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            read(iter(dataset("", os.devnull, 20)), 0, 20)
            read(iter(ds), 0, length)

    ds = dataset(where, calls, length)
    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(25):
            child = os.fork()
            if not child:
                faulthandler.dump_traceback_later(30, exit=True)
                with suppress(BaseException):
                    read(iter(ds), 0, length)
                    read(iter(dataset("", os.devnull, 20)), 0, 20)
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        thread.join()


def cut(where: str, calls: str, length: int) -> None:
    """Cut a segment of the recording to nothing while an iterator is in the middle, and elements are kept."""
    ds = dataset(where, calls, length)
    with iter(ds) as elements:
        read(elements, 0, length)
    elements = iter(ds)
    kept = [next(elements) for _ in range(length // 2)]
    for path in Path(where).rglob("*.seg"):
        os.truncate(path, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        read(elements, length // 2, length)
    for index, element in enumerate(kept):
        check(element, index)
        assert int(element.sum()) == sum(range(index, index + WIDTH))


def forbidden(where: str, calls: str, length: int) -> None:
    """Lose the right to read and write the recording in the middle of a pass, and get it back after another one."""
    list(dataset("", "/dev/null", 10))  # whatever is imported late is imported while everything may be read
    folder = tempfile.mkdtemp(dir="/tmp")
    try:
        if not os.geteuid():  # root is refused nothing
            os.chown(folder, _NOBODY, _NOBODY)
            os.seteuid(_NOBODY)
        calls = f"{folder}/calls"
        ds = dataset(f"{folder}/cache", calls, length)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", CacheWarning)
            elements = iter(ds)
            read(elements, 0, length // 2)
            os.chmod(f"{folder}/cache", 0)
            read(elements, length // 2, length)
            elements.close()
            read(iter(dataset(f"{folder}/cache", calls, length)), 0, length)
            assert any("Permission denied" in str(warning.message) for warning in told), told
            os.chmod(f"{folder}/cache", 0o700)
        read(iter(ds), 0, length)
        before = os.path.getsize(calls)
        read(iter(ds), 0, length)
        assert before == os.path.getsize(calls) <= 4 * length
    finally:
        os.seteuid(os.getuid())
        shutil.rmtree(folder)


def uneven(where: str, calls: str, length: int, death: int) -> None:
    """Record small elements, then large ones, then small ones; and die when the n-th chunk is written, if there is one.

    Raises:
        AssertionError: an element is not what it should be.
    """
    left = [death]

    def die(name: str, when: str) -> None:
        if (name, when) == ("segment sync", "before"):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    def sized(x: int) -> np.ndarray:
        with open(calls, "ab", buffering=0) as file:
            file.write(b".")
        return np.full(WIDTH if length // 4 <= x < 3 * length // 4 else 1, x)

    ds = dsnb.Dataset.range(length).map(sized).cache(where, chunk_bytes=8 * WIDTH * CHUNK)
    with failpoint_hook(die):
        assert [(int(element[0]), int(element[-1])) for element in ds] == [(x, x) for x in range(length)]


def interrupted(where: str, calls: str, length: int, seed: int, times: int) -> None:
    """Interrupt passes at random moments, go on with some and begin others anew; then one pass reads all.

    Raises:
        CacheWarning: something was lost or damaged, although the backend is in order.
    """
    warnings.simplefilter("error", CacheWarning)
    # An alarm that does what Ctrl-C does, at a moment that can be chosen to the microsecond.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    draw = random.Random(seed)
    ds = dataset(where, calls, length)
    state = _Pass(ds)
    hits = 0
    for _ in range(times):
        hit = struck(draw.uniform(0.1, 1.0) * draw.choice([0.0005, 0.003, 0.03]), state.go_on)
        hits += hit
        if not hit or draw.random() < 0.4:
            state = _Pass(ds)
    elements = iter(ds)
    read(elements, 0, length)
    assert next(elements, None) is None
    sys.stdout.write(f"HITS {hits}\n")


class _Pass:
    """One pass that may be interrupted and gone on with: what comes is right, in order, and never comes twice."""

    def __init__(self, ds: dsnb.Dataset) -> None:
        self._elements = iter(ds)
        self._next = 0

    def go_on(self) -> None:
        for element in self._elements:
            index = int(element[0])
            assert index >= self._next, f"element {index} after {self._next - 1}"
            self._next = index + 1
            check(element, index)


def struck(delay: float, act: Callable[[], None]) -> bool:
    """Do something, with an interrupt after a while; whether it came before the end."""
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            act()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


WHAT = {
    "whole": whole,
    "slow": slow,
    "forking": forking,
    "forks": forks,
    "cut": cut,
    "interrupted": interrupted,
    "uneven": uneven,
    "forbidden": forbidden,
}


def main(what: str, where: str, calls: str, *numbers: str) -> None:
    WHAT[what](where, calls, *map(int, numbers))  # type: ignore[operator]  # each has its own numbers


if __name__ == "__main__":
    main(*sys.argv[1:])
