"""Ways to read a distributed dataset that tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def numbers(elements: Iterable[Any]) -> list[int]:
    """All elements as plain numbers."""
    return [int(element) for element in elements]


def first(count: int, elements: Iterable[Any]) -> list[int]:
    """The next `count` elements of an iterator as plain numbers."""
    return numbers(islice(elements, count))


def joined(parts: Iterable[Iterable[T]]) -> list[T]:
    """What several readers got, in one list."""
    return list(chain.from_iterable(parts))


def outcomes(elements: Iterator[Any], most: int = 10_000) -> list[Any]:
    """What a user gets who catches each error and reads on to the end: elements and errors, in order."""
    out: list[Any] = []
    for _ in range(most):
        try:
            out.append(next(elements))
        except StopIteration:
            return out
        except Exception as error:  # noqa: BLE001 - errors are part of what comes
            out.append(error)
    raise AssertionError(f"no end after {most} elements and errors")


def read_alternately(iterators: Sequence[Iterator[T]]) -> list[list[T]]:
    """Take one element of each in turn until all have ended; what each one got."""
    out: list[list[T]] = [[] for _ in iterators]
    going = list(range(len(iterators)))
    while going:
        for at in list(going):
            try:
                out[at].append(next(iterators[at]))
            except StopIteration:
                going.remove(at)
    return out


def run_in_threads(calls: Sequence[Callable[[], T]], timeout: float = 30.0) -> list[T]:
    """Make calls in a thread each, and return what they returned; the first error is raised."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(at: int) -> None:
        try:
            results[at] = calls[at]()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,), name=f"reader-{at}", daemon=True) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    if errors:
        raise errors[0]
    late = [thread.name for thread in threads if thread.is_alive()]
    assert not late, f"still running after {timeout:g} s: {late}"
    return [results[at] for at in range(len(calls))]


class Gate:
    """A door that user code in any process waits at, and a count of who came to it. A file, so it can be pickled."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._opened_file = str(folder / name)
        self._visits = str(folder / f"{name}.visits")

    def wait(self, seconds: float = 30.0) -> None:
        """Be counted, and wait until the gate is opened."""
        import os
        import time

        with open(self._visits, "a", encoding="ascii") as visits:
            visits.write(".")
        deadline = time.monotonic() + seconds
        while not os.path.exists(self._opened_file):
            if time.monotonic() > deadline:
                raise TimeoutError("nobody opened the gate")
            time.sleep(0.005)

    def open(self) -> None:
        Path(self._opened_file).touch()

    def visits(self) -> int:
        """How often somebody has come to the gate."""
        path = Path(self._visits)
        return len(path.read_text(encoding="ascii")) if path.exists() else 0
