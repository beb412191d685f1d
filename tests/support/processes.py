"""Real Python processes in tests: started, waited for, and surely ended.

Output goes to files, not pipes: nothing fills up, no thread is needed to read, and a failure can show all of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


class PythonProcess:
    """A Python interpreter in a session of its own; leaving the `with` block kills whatever is left of it.

    Args:
        arguments: What follows `python`, as in `["-c", code]` or `["-m", "dsnb", "status"]`.
        env: Variables on top of this process's own.
        stdin: Whether to connect `popen.stdin` (to close it later); otherwise it is empty.
        prefix: A command that runs the interpreter in its place, such as `["nice"]`; it has to become that process.

    Example:
        >>> with PythonProcess(["-c", "print('READY'); input()"], stdin=True) as process:
        ...     process.wait_for_line("READY")
        ...     process.interrupt()
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        stdin: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="process-")
        self._out = Path(self._folder.name) / "stdout"
        self._err = Path(self._folder.name) / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.popen = subprocess.Popen(
                [*prefix, sys.executable, "-u", *arguments],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        if error is not None:
            error.add_note(self.describe())
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def stdout(self) -> str:
        """All that it printed so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """All that it printed as errors so far."""
        return self._err.read_text(errors="replace")

    def children(self) -> list[int]:
        """The ids of the processes that it started and that live."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == self.pid]

    def describe(self) -> str:
        """What it was and printed, for a failure's text."""
        ended = self.popen.poll()
        state = "runs" if ended is None else f"ended with {ended}"
        return f"process {self.pid} {state}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def wait_for_line(self, start: str, *, timeout: float = 60.0) -> str:
        """Wait for a whole line of output that begins with `start`, and return it without its end."""

        def find_line() -> str | None:
            whole = self.stdout.rpartition("\n")[0]
            found = next((line for line in whole.splitlines() if line.startswith(start)), None)
            if found is None and self.popen.poll() is not None and not self._has_line(start):
                raise AssertionError(f"no line {start!r} before the end of {self.describe()}")
            return found

        return wait_for(find_line, what=f"the line {start!r} of process {self.pid}", timeout=timeout) or ""

    def _has_line(self, start: str) -> bool:
        # The last line may have been written between the look at the output and the look at the process.
        return any(line.startswith(start) for line in self.stdout.splitlines())

    def wait_for_exit(self, *, timeout: float = 60.0) -> int:
        """Wait for its end and return the exit code (minus the signal's number, if one killed it)."""
        wait_for(lambda: self.popen.poll() is not None, what=f"process {self.pid} to end", timeout=timeout)
        return self.popen.returncode

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.popen.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """What a service manager does."""
        self.popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its children at once, and wait for that."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # it leads a group of its own: start_new_session
        self.popen.wait(timeout=10)
        if self.popen.stdin is not None:
            self.popen.stdin.close()


def is_running(pid: int) -> bool:
    """Whether a process lives; one that has ended and waits to be collected does not."""
    return _parent(pid) is not None


def _parent(pid: int) -> int | None:
    try:
        # The name in parentheses may hold anything; what follows its last parenthesis is state and parent.
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(parent)


@contextmanager
def python_process(code: str, *, ready: str = "READY", env: dict[str, str] | None = None) -> Iterator[PythonProcess]:
    """Run code in another interpreter, from the moment it prints a line that begins with `ready`.

    Example:
        >>> with python("import dsnb; service = dsnb.start(); print('READY', service.target); input()") as other:
        ...     target = other.wait_for_line("READY").split()[1]
    """
    with PythonProcess(["-c", code], env=env, stdin=True) as process:
        process.wait_for_line(ready)
        yield process
