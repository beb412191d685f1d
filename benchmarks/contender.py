"""Contenders as processes: started, asked, and surely ended with all that they started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from benchmarks.peers.serving import RESULT_PREFIX, Figures, Task, wanted_seconds

ENVIRONMENT_MARK = "DSNB_BENCHMARK_CHILD"
_EXIT_TIMEOUT_S = 15.0
_IDLE_SAMPLE_S = 0.5
_MAX_IDLE_CPUS = 0.25
"""Processors that a contender must not need while it waits for its turn."""
_EXCEPTION_LINE = re.compile(r"[\w.]+(Error|Exception|Warning): ")

# Not `resolve`: `versions.py` links this folder beside another version of dsnb, and contenders that a contender starts
# must import that version, too.
IMPORTED_FROM = Path(__file__).absolute().parents[1]


class ContenderError(RuntimeError):
    """A contender did not do what it was asked to; the message says why."""


class Contender:
    """A process that measures when it is told to.

    Args:
        python: The interpreter of its environment.
        module: What it runs.
        task: What it is to measure.
        deadline_s: How long it may take to be ready, and for one measurement.
        root: The folder whose `dsnb` and `benchmarks` it imports.
    """

    def __init__(self, python: Path, module: str, task: Task, deadline_s: float, root: Path = IMPORTED_FROM) -> None:
        self._deadline_s = deadline_s
        self.mark = f"{ENVIRONMENT_MARK}_{secrets.token_hex(8)}"  # a name of its own: contenders may have contenders
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the contender is there
        self._unread = b""
        self.folder = tempfile.mkdtemp(prefix="bench-")  # short: sockets lie in it
        self._process = subprocess.Popen(
            [str(python), "-m", module, json.dumps(asdict(task))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=root,
            env=_environment(root) | {self.mark: "1", "TMPDIR": self.folder},
            start_new_session=True,  # Ctrl-C is ours: contenders are ended in order
        )

    def wait_ready(self) -> None:
        """Wait until it is prepared."""
        self.read_result()

    def measure(self) -> Figures:
        """One measurement."""
        self.start_measurement()
        return self.read_result()

    def start_measurement(self) -> None:
        """Let it begin a measurement."""
        try:
            _pipe(self._process.stdin).write(b"go\n")
            _pipe(self._process.stdin).flush()
        except OSError as error:
            raise ContenderError(self._failure_text("went away")) from error

    def uses_cpu_when_idle(self) -> bool:
        """Whether it computes without having been asked to.

        Time that its threads waited for a processor counts too: on a busy machine they get only part of what they want.
        """
        before = self._wanted_seconds()
        time.sleep(_IDLE_SAMPLE_S)
        return self._wanted_seconds() - before > _MAX_IDLE_CPUS * _IDLE_SAMPLE_S

    def _wanted_seconds(self) -> float:
        return wanted_seconds(pids_with_mark(self.mark))

    def close(self) -> None:
        """Let it leave; what is still there after a while is killed."""
        with contextlib.suppress(OSError):
            _pipe(self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        for pid in pids_with_mark(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(_EXIT_TIMEOUT_S)
        _pipe(self._process.stdout).close()
        self._errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read_result(self) -> Figures:
        """The next line that is an answer."""
        until = time.monotonic() + self._deadline_s
        pipe = _pipe(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                while b"\n" in self._unread:
                    line, _, self._unread = self._unread.partition(b"\n")
                    if line.startswith(RESULT_PREFIX.encode()):
                        found: Figures = json.loads(line[len(RESULT_PREFIX) :])
                        return found
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise ContenderError(self._failure_text(f"did not answer within {self._deadline_s:g} seconds"))
                got = os.read(pipe.fileno(), 1 << 16)
                if not got:
                    raise ContenderError(self._failure_text("ended"))
                self._unread += got

    def _failure_text(self, what: str) -> str:
        """What happened, with the last error that it printed."""
        lines = self.stderr_text().strip().splitlines()
        raised = [line for line in lines if _EXCEPTION_LINE.match(line)] or lines
        return f"{what}: {raised[-1].strip()[:300]}" if raised else what

    def stderr_text(self) -> str:
        """All that it wrote to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


@contextlib.contextmanager
def started(python: Path, module: str, tasks: Sequence[Task], deadline_s: float) -> Iterator[list[Contender]]:
    """Several contenders at once, all of them ready."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(contextlib.closing(Contender(python, module, task, deadline_s))) for task in tasks]
        for one in made:
            one.wait_ready()
        yield made


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _environment(root: Path) -> dict[str, str]:
    """This one, for the code in `root`, with compiled files written: they are in an installation, too."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(root)}


def pids_with_mark(mark: str) -> Iterator[int]:
    """The processes that a contender started, whosever children they are by now."""
    wanted = f"{mark}=1".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
