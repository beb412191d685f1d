"""A dispatcher in a process of its own, which a test kills and starts again in its place."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dsnb
from dsnb.storage.failpoints import FAULT_VARIABLE
from dsnb.wire.security import read_token_file
from tests.support.cluster import Cluster
from tests.support.ports import unused_port
from tests.support.processes import PythonProcess

_SERVE = """
import json, sys
import dsnb
with dsnb.DispatchServer(dsnb.DispatcherConfig(**json.loads(sys.argv[1]))) as server:
    print(json.dumps({"target": server.target}), flush=True)
    server.join()
"""


class RestartableDispatcher:
    """`dsnb dispatcher --work-dir ...` on one port, however often it is killed.

    Args:
        folder: Its work folder.
        fault: What its first process does to itself, as the environment variable `DSNB_FAULT` says.
        settings: More of `DispatcherConfig`, also those for which the command has no option.

    Example:
        >>> with RestartableDispatcher(tmp_path) as dispatcher:
        ...     dispatcher.kill()
        ...     dispatcher.start()
    """

    def __init__(self, folder: Path, fault: str = "", **settings: Any) -> None:
        self.folder = folder
        self.port = unused_port()
        self._settings = settings
        self.target = f"grpc://127.0.0.1:{self.port}"
        self.kills = 0
        self._process: PythonProcess | None = None
        self.start(fault)
        self.wait_until_ready()

    @property
    def token(self) -> str:
        return read_token_file(self.folder / "token")

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How its process ended; None while it runs."""
        return self._process.popen.poll() if self._process is not None else None

    def start(self, fault: str = "") -> None:
        """Start it; it may take a second until it is ready."""
        arguments = ["-m", "dsnb", "dispatcher", "--json", "--port", str(self.port), "--work-dir", str(self.folder)]
        if self._settings:
            arguments = ["-c", _SERVE, json.dumps({"port": self.port, "work_dir": str(self.folder), **self._settings})]
        self._process = PythonProcess(arguments, env={FAULT_VARIABLE: fault})

    def wait_until_ready(self) -> None:
        """Wait until it listens."""
        assert self._process is not None
        assert json.loads(self._process.wait_for_line("{", timeout=60.0))["target"] == self.target

    def kill(self) -> None:
        """SIGKILL, wherever it is."""
        if self._process is not None:
            with self._process:  # which kills it, and clears up
                self.kills += 1
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again, without waiting until it is ready."""
        self.kill()
        self.start()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Have it stand still (SIGSTOP) meanwhile."""
        assert self._process is not None
        self._process.popen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.popen.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and self._process is not None:
            error.add_note(self._process.describe())
        self.kill()


class KillableCluster(Cluster):
    """One whose dispatcher is a process of its own; to restart it is to kill it.

    Args:
        folder: The dispatcher's work folder.
        settings: More of `DispatcherConfig`.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.dispatcher = RestartableDispatcher(folder, **settings)
        self.service = dsnb.connect(self.dispatcher.target, token=self.dispatcher.token)
        self.workers = []

    def restart_dispatcher(self) -> Any:
        """Kill the dispatcher and start another one in its place, without waiting until it is ready."""
        self.dispatcher.restart()
        return self.dispatcher

    def stop(self) -> None:
        self.dispatcher.kill()
