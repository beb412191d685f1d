"""A real Jupyter kernel that a test drives as a notebook does: cells, the stop button, restart, and worse."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty
from types import TracebackType
from typing import Any, Self

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.support.leaks import GRACE
from tests.support.processes import ROOT
from tests.support.waiting import wait_for

DEADLINE = 60.0
"""Seconds for a cell that takes none by itself."""

_MARK = "DSNB_TEST_KERNEL"
_CENSUS_CODE = "from tests.support.leaks import census, leftovers; _before = census()"
_LEFTOVERS_CODE = (
    "import json; print(json.dumps({kind: [*map(str, keys)] for kind, keys in leftovers(_before).items()}))"
)


class Cell:
    """One cell that runs, or has run.

    Attributes:
        stdout: What it printed so far.
        stderr: What it printed as errors so far, warnings among them.
        error: The exception that ended it, as in "KeyboardInterrupt: "; empty if none did.
        traceback: What the notebook shows of it, without colours.
        number: The number that the notebook shows beside it; 0 until it begins.
        ended: Whether it is over.
    """

    def __init__(self, client: BlockingKernelClient, code: str) -> None:
        self.stdout = self.stderr = self.error = self.traceback = ""
        self.number, self.ended = 0, False
        self._client = client
        self._id = client.execute(code)

    def wait(self, timeout: float = DEADLINE) -> Self:
        """Wait for its end."""
        wait_for(lambda: self._take() or self.ended, what="the cell to end", timeout=timeout, every=0)
        return self

    def wait_for(self, text: str, timeout: float = DEADLINE) -> Self:
        """Wait until it has printed something."""
        wait_for(lambda: self._take() or text in self.stdout, what=f"{text!r} of a cell", timeout=timeout, every=0)
        return self

    def _take(self) -> None:
        with suppress(Empty):
            message = self._client.get_iopub_msg(timeout=0.1)
            if message["parent_header"].get("msg_id") == self._id:
                self._note(message["msg_type"], message["content"])

    def _note(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif kind == "error":
            self.error = f"{content['ename']}: {content['evalue']}"
            self.traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
        elif kind == "execute_input":
            self.number = content["execution_count"]
        elif kind == "status":
            self.ended = content["execution_state"] == "idle"


class Kernel:
    """A kernel of its own; leaving the `with` block ends it and whatever it has left.

    Args:
        folder: Where the notebook would be; the kernel's own files lie in a folder of it.

    Example:
        >>> with Kernel(tmp_path) as kernel:
        ...     cell = kernel.begin("print('BUSY'); import time; time.sleep(60)").wait_for("BUSY")
        ...     kernel.interrupt()
        ...     assert cell.wait().error.startswith("KeyboardInterrupt")
    """

    def __init__(self, folder: Path) -> None:
        places = folder / ".kernel"
        places.mkdir(exist_ok=True)
        self._mark = uuid.uuid4().hex
        self._log_path = places / f"{self._mark}.log"
        env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(places), _MARK: self._mark}
        self._manager = KernelManager(connection_file=str(places / f"{self._mark}.json"))
        self._log = self._log_path.open("wb")  # open until the end: a restart uses it again
        self._manager.start_kernel(
            cwd=str(folder),
            env=env,
            stdout=self._log,
            stderr=self._log,
            extra_arguments=["--HistoryManager.enabled=False"],
        )
        self._client: BlockingKernelClient = self._manager.client()
        # Without heartbeats: one that is late has its connection made anew, which would look like a leak.
        self._client.start_channels(hb=False)
        self._client.wait_for_ready(timeout=DEADLINE)

    # ---- cells

    def begin(self, code: str) -> Cell:
        """Run a cell without waiting for it."""
        return Cell(self._client, code)

    def run(self, code: str, timeout: float = DEADLINE) -> str:
        """Run a cell that ends well and without a warning; returns what it printed."""
        cell = self.begin(code).wait(timeout)
        assert not cell.error, f"{cell.traceback}\n--- stderr\n{cell.stderr}"
        assert not cell.stderr, cell.stderr
        return cell.stdout

    def fail(self, code: str, timeout: float = DEADLINE) -> str:
        """Run a cell that ends in an error; returns that."""
        cell = self.begin(code).wait(timeout)
        assert cell.error, f"no error; it printed {cell.stdout!r}"
        return cell.error

    # ---- what people do to kernels

    @property
    def pid(self) -> int:
        return int(self._manager.provisioner.process.pid)  # type: ignore[union-attr]

    def interrupt(self) -> None:
        """The stop button: SIGINT to the kernel's process group."""
        self._manager.interrupt_kernel()

    def restart(self, *, at_once: bool = False) -> None:
        """The restart button: the kernel is asked to end, or is killed, and another one takes its place."""
        self._manager.restart_kernel(now=at_once)
        self._client.wait_for_ready(timeout=DEADLINE)

    def shutdown(self) -> None:
        """What closing the notebook does."""
        self._manager.shutdown_kernel()

    def kill(self) -> None:
        """SIGKILL to the kernel alone, as the system does where memory runs out."""
        os.kill(self.pid, signal.SIGKILL)
        wait_for(lambda: not self._manager.is_alive(), what="the kernel to be gone")

    # ---- what is left

    def take_census(self) -> None:
        """Note what there is in the kernel now, for `leftovers`."""
        self.run(_CENSUS_CODE)

    def leftovers(self) -> dict[str, list[str]]:
        """Threads, children, descriptors and files in the kernel that were not there at the last `take_census`."""
        found: dict[str, list[str]] = json.loads(self.run(_LEFTOVERS_CODE, timeout=GRACE + DEADLINE))
        return found

    def log_text(self) -> str:
        """What the kernel's process printed past its cells, but for IPython's own remarks."""
        lines = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if line and not line.startswith("[IPKernelApp]"))

    def processes(self) -> list[int]:
        """The kernel and all that came of it, whoever is their parent by now; zombies count as dead."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._belongs_to_kernel(pid)]

    def _belongs_to_kernel(self, pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it ended, or is another user's
            return False
        return state not in "ZX" and f"{_MARK}={self._mark}".encode() in environment.split(b"\0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=True)
        self._log.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if error is not None:
            error.add_note(f"--- the kernel's log\n{self.log_text()}")


def workers_of(kernel: Kernel) -> Iterator[int]:
    """The process ids of a kernel's worker processes."""
    for pid in kernel.processes():
        with suppress(OSError):
            if b"dsnb.worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                yield pid
