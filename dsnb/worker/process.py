"""A worker process, as seen by the process that owns it.

Theory of operation. One thread for each worker process starts it, reads its answer when it is ready, keeps the last
lines of its standard error, and waits for its end with a pidfd, so that the end is noticed at once rather than by
a timeout. The process is spawned, never forked, so it inherits no state of a notebook's kernel; it runs in its own
session, so the kernel's stop button does not interrupt it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from dsnb import errors
from dsnb.errors import DeadlineExceededError, DsnbError, UnavailableError, UnimplementedError
from dsnb.system_limits import limit_error
from dsnb.worker.config import WorkerConfig
from dsnb.worker.host import memory_kills

_LINES = 200  # after a crash, faulthandler prints the stack of every thread
_SHOWN = 20
_LINE_BYTES = 1000
_STOP_S = 5.0


class Tail:
    r"""The last 200 lines of a stream of bytes, each cut to 1000 bytes.

    Example:
        >>> tail = Tail()
        >>> tail.add(b"one\ntw")
        >>> tail.add(b"o\nthr")
        >>> tail.lines
        ('one', 'two', 'thr')
    """

    def __init__(self) -> None:
        self._complete_lines: deque[bytes] = deque(maxlen=_LINES)
        self._rest = b""

    def add(self, data: bytes) -> None:
        *complete, rest = (self._rest + data).split(b"\n")
        self._complete_lines.extend(line[:_LINE_BYTES] for line in complete)
        self._rest = rest[:_LINE_BYTES]

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines, including an unfinished one; bytes that are not UTF-8 are replaced."""
        kept = [*self._complete_lines, self._rest] if self._rest else [*self._complete_lines]
        return tuple(line.decode(errors="replace") for line in kept[-_LINES:])


class WorkerProcess:
    """One process that runs `python -m dsnb.worker`, here or through a command that starts it elsewhere. Thread-safe.

    Args:
        command: The command that starts `python -m dsnb.worker --remote` and connects its standard input and output to
            its own, as `srun` and `ssh` do; empty to start it on this host.

    Raises:
        UnimplementedError: the system has no pidfd, which this class needs to notice the process's end.
    """

    placed = True
    """A process never waits for resources."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        if not hasattr(os, "pidfd_open"):
            raise UnimplementedError(
                "worker processes need Linux, which tells of their end", hint='use isolation="thread"'
            )
        self._command = tuple(command)
        self.config: WorkerConfig | None = None
        self.uid = self.name = self.address = ""
        self.pid = 0
        self._on_death: Callable[[WorkerProcess], None] = lambda _: None
        self._tail = Tail()
        self._kills_before = memory_kills()
        self._process: subprocess.Popen[bytes] | None = None
        self._refusal: DsnbError | None = None
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._stopping = self._draining = self._terminated = False
        self._config_lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name="dsnb-worker-process", daemon=True)

    # ---- life cycle

    def prestart(self) -> None:
        """Spawn the process early. It does its imports, most of its start-up time, and waits for `start`."""
        self._thread.start()

    def start(self, config: WorkerConfig, on_death: Callable[[WorkerProcess], None]) -> None:
        """Start the worker without waiting for it; see `wait_ready`.

        Args:
            config: Settings of the worker.
            on_death: Called once, on the supervising thread, if the process ends without a request to do so.
        """
        self._on_death = on_death
        with self._config_lock:
            self.config = config
            self._send_config()
        if self._thread.ident is None:
            self.prestart()

    def wait_ready(self, timeout: float) -> None:
        """Wait until the worker is registered and serves readers.

        Args:
            timeout: Most seconds to wait.

        Raises:
            DeadlineExceededError: the worker is not ready in time; its process was killed.
            DsnbError: the reason why it could not start.
        """
        if not self._answered.wait(timeout):
            self.stop(0.0)
            raise DeadlineExceededError(
                f"a worker process was not ready within {timeout:g} seconds",
                did="it was ended",
                hint=f"it last said: {output_tail(self._tail.lines)}",
            )
        if self._refusal is not None:
            self.stop(_STOP_S)
            raise self._refusal

    def drain(self) -> None:
        """Ask the worker to accept no new work, and to exit once its readers are done. Does not wait."""
        self._draining = True
        self._send(b"drain\n")

    def ask_to_stop(self) -> None:
        """Ask the process to exit, by closing its standard input. Does not wait."""
        self._stopping = True
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def stop(self, timeout: float = _STOP_S) -> None:
        """Ask the process to exit and wait; kill it after `timeout` seconds. A second call does nothing.

        A command gets SIGTERM first, and some more seconds: it may have to end what it has started elsewhere, such as a
        job that waits in a queue and reads no standard input yet.
        """
        self.ask_to_stop()
        if not self._ended.wait(timeout) and self._command:
            self._terminate()
            self._ended.wait(_STOP_S)
        if not self._ended.is_set():
            self.kill()
            self._ended.wait(_STOP_S)
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def _terminate(self) -> None:
        """Send SIGTERM to the command and to what it runs here, such as the `srun` of a shell script."""
        process = self._process
        if process is not None and not self._ended.is_set():
            self._terminated = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process (SIGKILL) if it is running."""
        process = self._process
        if process is not None:
            process.kill()  # does nothing once the process was waited for, so a reused process id is never hit

    @property
    def idle(self) -> bool:
        """Whether the process has ended. A drained worker ends once its readers are done."""
        return self._ended.is_set()

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines of its standard error, which also gets the standard output of user code."""
        return self._tail.lines[-_SHOWN:]

    def exit_reason(self) -> str:
        """Why the process ended, in words, with the last lines of its standard error."""
        if self._refusal is not None:
            return self._refusal.what
        returncode = self._process.returncode if self._process is not None else None
        assert returncode is not None, "it has not ended"
        if self._command:
            end = _signal_name(-returncode) if returncode < 0 else f"exit code {returncode}"
            return f"its command {shlex.join(self._command)!r} ended with {end}; {self._last_output()}"
        why = exit_reason(returncode, memory_ran_out=memory_kills() > self._kills_before)
        return f"its process {self.pid} {why}; {self._last_output()}"

    def _last_output(self) -> str:
        return f"it last said: {output_tail(self._tail.lines)}"

    def __repr__(self) -> str:
        state = "ended" if self._ended.is_set() else "running" if self._answered.is_set() else "starting"
        return f"WorkerProcess({self.name or 'unnamed'}, {state})"

    # ---- the supervising thread

    def _supervise(self) -> None:
        try:
            self._spawn()
            assert self._process is not None
            self._watch(self._process)
        except OSError as error:
            self._refusal = limit_error(error) or UnavailableError(f"a worker process could not be started: {error}")
        finally:
            if self._refusal is None and not self.uid:
                self._refusal = self._ended_early()
            self._answered.set()
            self._ended.set()
        drained = self._draining and self._process is not None and self._process.returncode == 0
        if not self._stopping and not drained:
            self._on_death(self)

    def _spawn(self) -> None:
        # The worker asks Linux for SIGKILL when the thread that spawned it ends (`die_with_parent`). So spawn it from
        # this thread, which lives as long as the process does; the caller's thread may end earlier.
        # -P: a file in the current folder must not shadow a module that the worker needs.
        own = [sys.executable, "-P", "-X", "faulthandler", "-m", "dsnb.worker", "--owner", str(os.getpid())]
        process = subprocess.Popen(  # noqa: S603 - its own interpreter and numbers, or what the user asked to run
            self._command or own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, **python_path()},
        )
        with self._config_lock:
            self._process, self.pid = process, process.pid
            self._send_config()
        if self._stopping:  # `ask_to_stop` ran before `_process` was set, and had no standard input to close
            self.ask_to_stop()

    def _send_config(self) -> None:
        """Send the settings once both the process and the settings exist. Runs under `_config_lock`."""
        if self.config is not None and self.pid:
            self._send(json.dumps(asdict(self.config)).encode() + b"\n")

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Read the process's output until it ends, then kill its children and reap it."""
        assert process.stdout is not None
        assert process.stderr is not None
        end = os.pidfd_open(process.pid)
        try:
            listening: list[IO[bytes] | int] = [process.stdout, process.stderr, end]
            while end in listening:
                ready, _, _ = select.select(listening, [], [])
                if process.stdout in ready and self._handle_reply(process.stdout.readline()):
                    listening.remove(process.stdout)
                if process.stderr in ready and not self._read_stderr(process.stderr):
                    listening.remove(process.stderr)  # user code closed it; the process may still be running
                if end in ready:
                    listening.remove(end)
            # Read only what is there already: a child of the process may keep the pipe open, so its end may never come.
            # Only what a command started may take a moment to end in order, if the command itself died of SIGTERM.
            until = time.monotonic() + (_STOP_S if self._terminated else 0.0)
            while select.select([process.stderr], [], [], max(0.0, until - time.monotonic()))[0]:
                if not self._read_stderr(process.stderr):
                    break
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # processes that user code started there
            process.wait()  # only now: until it is reaped, its id cannot be reused, so killpg hits the right group
        finally:
            os.close(end)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _handle_reply(self, line: bytes) -> bool:
        """Parse the process's only answer; whether no other line is to be read. It ended first if the line is empty."""
        if not line:
            return True
        if self._command and not line.startswith(b"{"):  # a greeting of the command or of the shell that it starts
            self._tail.add(line)
            return False
        answer: Mapping[str, Any] = json.loads(line)
        if "failed" in answer:
            kind = getattr(errors, answer["failed"], DsnbError)
            self._refusal = kind(answer["what"], did=answer["did"], hint=answer["hint"])
        else:
            self.uid, self.name, self.address = answer["uid"], answer["name"], answer["address"]
        self._answered.set()
        return True

    def _read_stderr(self, stderr: IO[bytes]) -> bool:
        data = os.read(stderr.fileno(), 1 << 16)
        self._tail.add(data)
        return bool(data)

    def _send(self, line: bytes) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            # The process may have ended, or its standard input may be closed; `_watch` notices its end.
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(line)

    @staticmethod
    def _status_command() -> str:
        return f"{Path(sys.executable).name} -m dsnb status"

    def _ended_early(self) -> DsnbError:
        return UnavailableError(
            f"a worker process ended before it was ready: {self.exit_reason()}",
            did="the service was left as it was",
            hint=f"try it in a terminal: {shlex.join(self._command) or self._status_command()}, and look at what it "
            "last said",
        )


def python_path() -> dict[str, str]:
    """PYTHONPATH with which a new process imports the same dsnb as this one; empty if dsnb is installed."""
    folder = str(Path(__file__).resolve().parents[2])
    if folder.endswith(("site-packages", "dist-packages")):
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": folder if not before else f"{folder}{os.pathsep}{before}"}


_NATIVE_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_TAIL_LINES = 5


def exit_reason(returncode: int, *, memory_ran_out: bool) -> str:
    """Explain the return code of a process that ended without a request to do so.

    Args:
        returncode: The exit code, or minus the number of the signal that ended it.
        memory_ran_out: Whether the kernel's OOM killer killed any process while this one ran.

    Returns:
        A verb phrase that follows "its process ...".

    Example:
        >>> exit_reason(3, memory_ran_out=False)
        'ended itself with exit code 3, as os._exit(3) in user code does'
    """
    if returncode >= 0:
        return f"ended itself with exit code {returncode}, as os._exit({returncode}) in user code does"
    name = _signal_name(-returncode)
    if -returncode == signal.SIGKILL and memory_ran_out:
        return f"was ended by {name} because memory ran out, as the system's own count of such ends says"
    if -returncode == signal.SIGKILL:
        return f"was ended by {name} from outside; the system does that too when memory runs out"
    if -returncode in _NATIVE_CRASHES:
        return f"was ended by {name}: native code that the pipeline calls crashed"
    return f"was ended by {name} from outside"


def output_tail(lines: Sequence[str]) -> str:
    """The last output of a process, on one line. After a crash: the error, and the stack of the thread that crashed.

    Example:
        >>> output_tail(["loading", "Fatal Python error: Aborted", "", "Current thread 0x1:", '  File "a.py", line 3'])
        'loading | Fatal Python error: Aborted | File "a.py", line 3'
    """
    crash = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if crash is None:
        return _joined(lines[-_TAIL_LINES:])
    thread = next((at for at in range(crash, len(lines)) if lines[at].startswith("Current thread")), len(lines))
    return _joined([*lines[max(0, crash - 1) : crash + 1], *lines[thread + 1 : thread + 1 + _TAIL_LINES]])


def _joined(lines: Sequence[str]) -> str:
    return " | ".join(line.strip() for line in lines if line.strip()) or "nothing"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
