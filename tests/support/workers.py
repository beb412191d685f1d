"""Workers in processes of their own, which a test kills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import PythonProcess


@contextmanager
def worker_process(target: str, token: str, port: int = 0, *more: str) -> Iterator[PythonProcess]:
    """`dsnb worker` for a dispatcher, ready; `more` are further arguments.

    Example:
        >>> with worker_process(dispatcher.target, dispatcher.token) as worker:
        ...     worker.kill()
    """
    arguments = ["--json", "--dispatcher", target, "--port", str(port), *more]
    with PythonProcess(["-m", "dsnb", "worker", *arguments], env={"DSNB_TOKEN": token}) as worker:
        worker.wait_for_line("{", timeout=60.0)
        yield worker


def address_of(worker: PythonProcess) -> str:
    """Where a worker listens."""
    return str(json.loads(worker.wait_for_line("{"))["address"])
