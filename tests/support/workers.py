"""Workers in processes of their own, which a test kills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from dsnb.storage.failpoints import FAULT_VARIABLE
from tests.support.processes import PythonProcess


@contextmanager
def worker_process(target: str, token: str, port: int = 0, *more: str, fault: str = "") -> Iterator[PythonProcess]:
    """`dsnb worker` for a dispatcher, ready; `more` are further arguments, and `fault` is its `DSNB_FAULT`.

    Example:
        >>> with worker_process(dispatcher.target, dispatcher.token) as worker:
        ...     worker.kill()
    """
    with started_worker(target, token, port, *more, fault=fault) as worker:
        worker.wait_for_line("{", timeout=60.0)
        yield worker


@contextmanager
def worker_processes(count: int, target: str, token: str) -> Iterator[list[PythonProcess]]:
    """Several of them, which start at the same time and so register in any order."""
    with ExitStack() as stack:
        workers = [stack.enter_context(started_worker(target, token)) for _ in range(count)]
        for worker in workers:
            worker.wait_for_line("{", timeout=60.0)
        yield workers


def started_worker(target: str, token: str, port: int = 0, *more: str, fault: str = "") -> PythonProcess:
    """The process of `worker_process`, not ready yet."""
    arguments = ["--json", "--dispatcher", target, "--port", str(port), *more]
    return PythonProcess(["-m", "dsnb", "worker", *arguments], env={"DSNB_TOKEN": token, FAULT_VARIABLE: fault})


def address_of(worker: PythonProcess) -> str:
    """Where a worker listens."""
    return str(json.loads(worker.wait_for_line("{"))["address"])
