"""A Jupyter kernel that started workers on an engine and is killed, while the engine lives on."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.kernel import Kernel

READY_S = 180.0
GONE_S = 50.0
"""The promise: launched workers end so long after their dispatcher is gone."""
_ENDING_S = 30.0
"""What ending, and finding that out, may take on a busy machine."""

_WORKERS = """
import json
status = svc.wait_until({condition}, {seconds})
print(json.dumps([(worker.uid, worker.pid, worker.address) for worker in status.workers]))
"""
_READ = """
import time
elements = iter(
    dsnb.Dataset.range(10**9).map(lambda x: (time.sleep(0.001), x)[1]).batch(4)
    .apply(dsnb.distribute("distributed_epoch", svc, job_name="train"))
)
print(json.dumps([int(next(elements)[0]) >= 0, svc.target]))
"""


class Plan(NamedTuple):
    """How many workers a kernel starts, how many of them are killed, how many remain then, and how many kernels."""

    workers: int
    killed: int
    remaining: int
    times: int


SHORT = Plan(workers=4, killed=1, remaining=2, times=1)
LONG = Plan(workers=8, killed=2, remaining=4, times=3)


class LostKernel:
    """A notebook with a service on an engine.

    Args:
        kernel: Its kernel.
        plan: How many workers.
        start: The cell that starts `svc` with that many.
        scale: Scales the service to those that remain; the text of a cell, or a call.
        held: What the engine holds for workers, of which some had these process ids.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        start: str,
        scale: str | Callable[[], object],
        held: Callable[[set[int]], Sequence[str]],
    ) -> None:
        self._kernel = kernel
        self._plan = plan
        self._start = start
        self._scale = scale
        self._held = held
        self._pids: set[int] = set()
        self._addresses: set[str] = set()
        self._killed_at = 0.0

    def work_and_be_killed(self) -> None:
        """Start workers, lose some, scale, read, and be replaced by a new kernel without any time to clean up."""
        count = self._plan.workers
        self._run(self._start)
        before = self._workers(f"lambda s: len(s.workers) == {count}")
        for _, pid, _ in before[: self._plan.killed]:
            os.kill(pid, signal.SIGKILL)
        lost = {uid for uid, _, _ in before[: self._plan.killed]}
        self._workers(f"lambda s: len(s.workers) == {count} and not {lost!r} & {{w.uid for w in s.workers}}")
        if isinstance(self._scale, str):
            self._run(self._scale)
        else:
            self._scale()
        self._workers(f"lambda s: len(s.workers) == {self._plan.remaining}")
        _, target = json.loads(self._run(_READ))
        self._addresses.add(target.removeprefix("grpc://"))
        assert self._held(self._pids)
        assert len([*filter(_listens, self._addresses)]) > self._plan.remaining, "a port of the dispatcher or a worker"
        self._killed_at = time.monotonic()
        self._kernel.restart(at_once=True)

    def nothing_is_held(self) -> None:
        """Wait until the engine holds nothing and no port listens, and print how long that took."""
        while found := [*self._held(self._pids), *filter(_listens, self._addresses)]:
            late = time.monotonic() - self._killed_at - GONE_S - _ENDING_S
            assert late < 0.0, f"still there {GONE_S + _ENDING_S:g} s after the kernel was killed: {found}"
            time.sleep(0.5)
        sys.stderr.write(f"nothing of the kernel was left {time.monotonic() - self._killed_at:.1f} s after its end\n")

    def _workers(self, condition: str) -> list[list[Any]]:
        found: list[list[Any]] = json.loads(self._run(_WORKERS.format(condition=condition, seconds=READY_S)))
        self._pids |= {pid for _, pid, _ in found}
        self._addresses |= {address for _, _, address in found}
        return found

    def _run(self, code: str) -> str:
        """Run a cell; returns the last line that it printed."""
        cell = self._kernel.begin(code).wait(READY_S)
        assert not cell.error, f"{cell.traceback}\n--- stderr\n{cell.stderr}"  # engines print what is no error
        return cell.stdout.rstrip().rpartition("\n")[2]  # dsnb may have said something before


@contextmanager
def notebook() -> Iterator[Kernel]:
    """A kernel in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder, Kernel(Path(folder)) as kernel:
        yield kernel


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError:
        return False
    return True
