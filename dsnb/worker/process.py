"""A worker in a process of its own, seen from the process that owns it.

One thread for each worker process starts it, hears that it is ready, keeps the last lines of its standard error, and
learns of its end at once, from the system and not from a silence. The process is never forked but started anew, in a
session of its own, so that neither the state of a kernel nor its stop button reaches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from dsnb import errors
from dsnb.errors import DeadlineExceededError, DsnbError, UnavailableError, UnimplementedError
from dsnb.system_limits import limit_error
from dsnb.worker.config import WorkerConfig
from dsnb.worker.host import memory_kills
from dsnb.worker.obituary import exit_reason, output_tail

_LINES = 200  # a crash tells where each thread stood
_SHOWN = 20
_LINE_BYTES = 1000
_STOP_S = 5.0


class Tail:
    r"""The last lines of a stream of bytes, with bounds for each.

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
        """The lines so far, the unfinished last one among them; what is no text is shown as it can be."""
        kept = [*self._complete_lines, self._rest] if self._rest else [*self._complete_lines]
        return tuple(line.decode(errors="replace") for line in kept[-_LINES:])


class WorkerProcess:
    """One `python -m dsnb.worker`. May be used from any thread.

    Raises:
        UnimplementedError: the system cannot tell of a process's end.
    """

    def __init__(self) -> None:
        if not hasattr(os, "pidfd_open"):
            raise UnimplementedError(
                "worker processes need Linux, which tells of their end", hint='use isolation="thread"'
            )
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
        self._stopping = self._draining = False
        self._config_lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name="dsnb-worker-process", daemon=True)

    # ---- life

    def prestart(self) -> None:
        """Have it import what it needs, which takes most of its start, and wait for `start` to say what it is to do."""
        self._thread.start()

    def start(self, config: WorkerConfig, on_death: Callable[[WorkerProcess], None]) -> None:
        """Begin to start it; `wait_ready` waits for the rest.

        Args:
            config: Settings of the worker.
            on_death: Called once, in a thread of its own, if the process ends without having been asked to.
        """
        self._on_death = on_death
        with self._config_lock:
            self.config = config
            self._send_config()
        if self._thread.ident is None:
            self.prestart()

    def wait_ready(self, timeout: float) -> None:
        """Wait until it serves.

        Raises:
            DeadlineExceededError: it is not ready in time; it has been ended.
            DsnbError: why it could not start.
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
        """Take nothing new, and end when nobody reads any more."""
        self._draining = True
        self._send(b"drain\n")

    def ask_to_stop(self) -> None:
        """End soon, without waiting for it."""
        self._stopping = True
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def stop(self, timeout: float = _STOP_S) -> None:
        """End, by force if it takes longer than `timeout` seconds; the second call does nothing."""
        self.ask_to_stop()
        if not self._ended.wait(timeout):
            self.kill()
            self._ended.wait(_STOP_S)
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        process = self._process
        if process is not None:
            process.kill()  # does nothing once the end was noticed, so the id cannot be another's

    @property
    def idle(self) -> bool:
        """Whether it has ended, as it does when it was drained and nobody reads any more."""
        return self._ended.is_set()

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines of its standard error, to which user code's standard output goes as well."""
        return self._tail.lines[-_SHOWN:]

    def exit_reason(self) -> str:
        """Why it ended, with its last words."""
        returncode = self._process.returncode if self._process is not None else None
        assert returncode is not None, "it has not ended"
        why = exit_reason(returncode, memory_ran_out=memory_kills() > self._kills_before)
        return f"its process {self.pid} {why}; it last said: {output_tail(self._tail.lines)}"

    def __repr__(self) -> str:
        state = "ended" if self._ended.is_set() else "running" if self._answered.is_set() else "starting"
        return f"WorkerProcess({self.name or 'unnamed'}, {state})"

    # ---- the thread that attends to it

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
        if self.uid and not self._stopping and not drained:
            self._on_death(self)

    def _spawn(self) -> None:
        # Started by this thread, which lives as long as the process: the system ends the process with the thread.
        # -P: what lies in the current folder must not stand in for a module that the worker itself needs.
        command = [sys.executable, "-P", "-X", "faulthandler", "-m", "dsnb.worker", "--owner", str(os.getpid())]
        process = subprocess.Popen(  # noqa: S603 - its own interpreter, and numbers
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, **_python_path()},
        )
        with self._config_lock:
            self._process, self.pid = process, process.pid
            self._send_config()
        if self._stopping:  # meanwhile
            self.ask_to_stop()

    def _send_config(self) -> None:
        """Tell it its settings, once there are both."""
        if self.config is not None and self.pid:
            self._send(json.dumps(asdict(self.config)).encode() + b"\n")

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Listen to it until it is gone."""
        assert process.stdout is not None
        assert process.stderr is not None
        end = os.pidfd_open(process.pid)
        try:
            listening: list[IO[bytes] | int] = [process.stdout, process.stderr, end]
            while end in listening:
                ready, _, _ = select.select(listening, [], [])
                if process.stdout in ready:
                    self._handle_reply(process.stdout.readline())
                    listening.remove(process.stdout)
                if process.stderr in ready and not self._read_stderr(process.stderr):
                    listening.remove(process.stderr)  # closed by the pipeline's own code; the process may live on
                if end in ready:
                    listening.remove(end)
            # A child of the process may hold its end open, so only what is there is read.
            while select.select([process.stderr], [], [], 0)[0] and self._read_stderr(process.stderr):
                pass
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what user code started there ends with it
            process.wait()
        finally:
            os.close(end)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _handle_reply(self, line: bytes) -> None:
        """Its one answer; nothing if it ended before."""
        if not line:
            return
        answer: Mapping[str, Any] = json.loads(line)
        if "failed" in answer:
            kind = getattr(errors, answer["failed"], DsnbError)
            self._refusal = kind(answer["what"], did=answer["did"], hint=answer["hint"])
        else:
            self.uid, self.name, self.address = answer["uid"], answer["name"], answer["address"]
        self._answered.set()

    def _read_stderr(self, stderr: IO[bytes]) -> bool:
        data = os.read(stderr.fileno(), 1 << 16)
        self._tail.add(data)
        return bool(data)

    def _send(self, line: bytes) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            # A process that has just ended, or was asked to, is told nothing; its end is noticed elsewhere.
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(line)

    def _ended_early(self) -> DsnbError:
        return UnavailableError(
            f"a worker process ended before it was ready: {self.exit_reason()}",
            did="the service was left as it was",
            hint=f"try it in a terminal: {Path(sys.executable).name} -m dsnb status, and look at what it last said",
        )


def _python_path() -> dict[str, str]:
    """PYTHONPATH for a process that is to import the dsnb of this one, wherever it was imported from."""
    folder = str(Path(__file__).resolve().parents[2])
    if folder.endswith(("site-packages", "dist-packages")):
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": folder if not before else f"{folder}{os.pathsep}{before}"}
