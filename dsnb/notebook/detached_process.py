"""`python -m dsnb.notebook.detached_process`: the process of a service that outlives its kernel; see `detached`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from types import FrameType
from typing import IO, TYPE_CHECKING

from dsnb.notebook.detached import log_path
from dsnb.notebook.settings import ClusterSettings, WorkerCount
from dsnb.wire import discovery
from dsnb.wire.discovery import Connection
from dsnb.wire.lifecycle import SIGNAL_POLL_S, SignalEvent

if TYPE_CHECKING:
    from dsnb.notebook.service import DataService

_Request = tuple[str | None, WorkerCount, ClusterSettings]


def main() -> int:
    """Start the service that standard input describes, reply on standard output, and serve until SIGTERM."""
    request: _Request = pickle.load(sys.stdin.buffer)
    # The parent exits, so that the kernel has no child: neither to wait for, nor to be killed with.
    if os.fork():
        os._exit(0)
    os.setsid()
    stop = SignalEvent()

    def request_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, request_stop)
    reply = _take_standard_streams()
    try:
        service, connection = _start(*request)
    except Exception as error:  # noqa: BLE001 - the kernel raises it
        _send(reply, error)
        return 1
    log = log_path(connection.name)
    _redirect(sys.stderr, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    wanted = _send(reply, connection)
    while wanted and not stop.wait(SIGNAL_POLL_S):
        pass
    service.stop()
    log.unlink(missing_ok=True)
    return 0


def _start(name: str | None, count: WorkerCount, settings: ClusterSettings) -> tuple[DataService, Connection]:
    from dsnb.notebook.start import start_here

    service = start_here(name, count, settings)
    connection = discovery.read(service.name)
    assert connection is not None
    return service, connection


def _take_standard_streams() -> int:
    """Detach standard input and output from the kernel; returns the pipe to it, whose end it waits for."""
    reply = os.dup(sys.stdout.fileno())
    _redirect(sys.stdin, os.open(os.devnull, os.O_RDONLY))
    _redirect(sys.stdout, os.open(os.devnull, os.O_WRONLY))
    return reply


def _send(reply: int, value: Connection | Exception) -> bool:
    """Send the kernel the outcome; False if the kernel has ended, or was interrupted, and nobody wants the service."""
    try:
        with os.fdopen(reply, "wb") as stream:
            pickle.dump(value, stream)
    except BrokenPipeError:
        return False
    return True


def _redirect(stream: IO[str], descriptor: int) -> None:
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
