"""Jobs that compete for the processors of a worker."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dsnb
from dsnb.errors import CancelledError, UnavailableError

_BLOCK = bytes(1 << 20)


def burn(number: int) -> int:
    """Use a processor for some 10 ms; most of it without the GIL."""
    for _ in range(10):
        hashlib.sha256(_BLOCK).digest()
    return number


def loop(number: int) -> int:
    """Use a processor for some 10 ms, with the GIL."""
    return number + 0 * sum(range(150_000))


@contextmanager
def read(
    service: Any, name: str, function: Callable[[int], int], threads: int | None, **options: Any
) -> Iterator[None]:
    """Have a thread read a job without end."""
    data = dsnb.Dataset.range(10**9).map(function, num_parallel_calls=threads)
    distributed = data.apply(dsnb.distribute("parallel_epochs", service, job_name=name, **options))
    elements = iter(distributed)

    def consume() -> None:
        with suppress(CancelledError, UnavailableError):
            for _ in elements:
                pass

    thread = threading.Thread(target=consume, name=f"test-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        elements.close()
        thread.join(30)
        assert not thread.is_alive()
