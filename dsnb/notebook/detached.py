"""`DetachedCluster`: a dispatcher and workers in processes of their own, which outlive the kernel that started them.

The service runs in a process of its own session, `detached_process`, which no signal to the kernel's group reaches and
which does not watch its parent. Its connection file holds the arguments of `start`, so that a restarted kernel, or
another one, finds it again by its name. SIGTERM stops it.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from dsnb.arguments import short_repr
from dsnb.errors import DeadlineExceededError, DsnbError, UnavailableError, UnimplementedError
from dsnb.launchers.command import Command
from dsnb.monitor.controls import Controls, describe_caller
from dsnb.monitor.watch import fetch_snapshot
from dsnb.notebook.settings import ClusterSettings, WorkerCount
from dsnb.wire import discovery
from dsnb.wire.discovery import Connection
from dsnb.wire.stopped_services import note_started, note_stopped
from dsnb.worker.process import python_path

_STOP_S = 30.0
_SIZE_S = 2.0
_POLL_INTERVAL_S = 0.02


class DetachedCluster:
    """A service in a process of its own, as a kernel that may stop it sees it; what `Cluster` is for its own services.

    Args:
        connection: The connection file of the service.
        on_stop: Called when this kernel has stopped the service.
    """

    def __init__(self, connection: Connection, on_stop: Callable[[], None]) -> None:
        self.connection = connection
        self.settings = settings_from_json(connection.settings, connection.token)
        self._on_stop = on_stop
        self._pid = os.getpid()
        self._size = 0
        note_started(connection.target)  # perhaps at an address that an earlier service of this kernel had

    @property
    def size(self) -> int:
        """The number of workers, without those that are leaving; the last known one if the service does not answer."""
        try:
            workers = fetch_snapshot(self.connection.target, self.connection.token, _SIZE_S).workers
        except DsnbError:
            return self._size
        self._size = sum(worker.state == "running" for worker in workers)
        return self._size

    def scale(self, count: int) -> str:
        """Start or stop workers until there are `count`; the service announces itself what could not be placed."""
        requested_by = describe_caller("svc.scale()")
        Controls(self.connection.target, self.connection.token, requested_by=requested_by).scale(count)
        return ""

    @property
    def stopped(self) -> bool:
        """Whether the service has ended, by whatever means."""
        return not discovery.is_alive(self.connection)

    def stop(self) -> None:
        """Stop the service, and wait for the end of its process. Does nothing if it has ended, or in a forked child.

        Raises:
            DeadlineExceededError: its process has not ended in time; the next call waits for it again.
        """
        if os.getpid() != self._pid:
            return
        stop_detached(self.connection)
        self._on_stop()
        note_stopped(self.connection.target, self.connection.name)


def stop_detached(connection: Connection) -> None:
    """End the process of a detached service; does nothing if it has ended.

    Raises:
        DeadlineExceededError: it has not ended in time.
    """
    deadline = time.monotonic() + _STOP_S
    with suppress(ProcessLookupError):
        if discovery.is_alive(connection):
            os.kill(connection.pid, signal.SIGTERM)
    while discovery.is_alive(connection):
        if time.monotonic() > deadline:
            raise DeadlineExceededError(
                f"the process {connection.pid} of the service {connection.name!r} has not ended within {_STOP_S:g} "
                "seconds",
                did="it was asked to stop, by SIGTERM",
                hint=f"wait for user code that is running, or end it by force: kill -9 {connection.pid}",
            )
        time.sleep(_POLL_INTERVAL_S)


def find_detached(name: str | None) -> Connection | None:
    """The detached service with this name, or the first one of this user if no name is given; None if there is none."""
    return next((one for one in discovery.running() if one.settings and name in (None, one.name)), None)


def wait_for_detached(name: str, timeout: float) -> Connection | None:
    """The detached service of that name that another kernel is starting; None if none comes, or it is another one."""
    deadline = time.monotonic() + timeout
    while (found := find_detached(name)) is None and time.monotonic() < deadline:
        claimed = discovery.read(name)
        if claimed is None or claimed.target:
            break
        time.sleep(_POLL_INTERVAL_S)
    return found or find_detached(name)


def log_path(name: str) -> Path:
    """The file for the standard error of a detached service's process, beside its connection file."""
    return discovery.runtime_dir() / f"{name}.log"


def check_launcher(on: Any) -> None:
    """Refuse launchers that a process of its own cannot use.

    Raises:
        UnimplementedError: the launcher belongs to this process.
    """
    if on is not None and not isinstance(on, Command):
        raise UnimplementedError(
            f"a service that outlives its kernel cannot use {short_repr(on)}, which belongs to this kernel",
            did="nothing was started",
            hint="leave `on` out, or use dsnb.launchers.Command([...]); or start the service in a script that stays, "
            "with on=..., and connect to it: dsnb.connect(name)",
        )


def start_detached(name: str | None, count: WorkerCount, settings: ClusterSettings) -> Connection:
    """Start a service in a process of its own and wait until it serves.

    Raises:
        DsnbError: the reason why it could not be started.
        UnavailableError: its process ended without a reason.
    """
    reading, writing = os.pipe()  # not standard output, to which anything may print at the start of an interpreter
    with os.fdopen(reading, "rb") as reply:
        try:
            # -P: a file in the current folder must not shadow a module. Own session: Ctrl-C does not reach it.
            process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-P", "-m", "dsnb.notebook.detached_process", str(writing)],
                stdin=subprocess.PIPE,
                pass_fds=(writing,),
                start_new_session=True,
                env={**os.environ, **python_path()},
            )
        finally:
            os.close(writing)
        # The request goes through standard input, not the argument list: it contains the token.
        process.communicate(pickle.dumps((name, count, settings)))
        data = reply.read()
    if not data:
        raise UnavailableError(
            "the process of the service ended before it served",
            did="nothing was started",
            hint="its standard error, in the terminal of this kernel, may say why",
        )
    found: Any = pickle.loads(data)
    if isinstance(found, BaseException):
        raise found
    assert isinstance(found, Connection)
    return found


def settings_to_json(settings: ClusterSettings) -> str:
    """The settings as text for the connection file, without the token, which the file has anyway."""
    named = {each.name: getattr(settings, each.name) for each in fields(ClusterSettings) if each.name != "token"}
    return json.dumps({**named, "on": list(settings.on.argv) if isinstance(settings.on, Command) else None})


def settings_from_json(text: str, token: str) -> ClusterSettings:
    """The settings that `settings_to_json` wrote, without those that only another version of dsnb has."""
    known = {each.name for each in fields(ClusterSettings)}
    named = {name: value for name, value in json.loads(text).items() if name in known}
    return ClusterSettings(**{**named, "on": Command(named["on"]) if named["on"] else None, "token": token})
