"""`python -m dsnb.notebook.detached_process`: the process of a service that outlives its kernel; see `detached`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from dsnb.errors import DsnbError
from dsnb.notebook.detached import log_path
from dsnb.notebook.settings import ClusterSettings, WorkerCount
from dsnb.wire import discovery
from dsnb.wire.discovery import Connection
from dsnb.wire.lifecycle import SIGNAL_POLL_S, SignalEvent

if TYPE_CHECKING:
    from dsnb.notebook.service import DataService

_Request = tuple[str | None, WorkerCount, ClusterSettings]


def main() -> int:
    """Start the service that standard input describes, reply on the given descriptor, and serve until SIGTERM."""
    request: _Request = pickle.load(sys.stdin.buffer)  # from the kernel that started this process
    # The parent exits, so that the kernel has no child: neither to wait for, nor to be killed with.
    if os.fork():
        os._exit(0)
    os.setsid()
    stop = SignalEvent()

    def request_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, request_stop)
    reply = int(sys.argv[1])
    os.set_inheritable(reply, False)
    _redirect(sys.stdin, os.open(os.devnull, os.O_RDONLY))
    _redirect(sys.stdout, os.open(os.devnull, os.O_WRONLY))
    try:
        service, connection = _start(*request)
    except Exception as error:  # noqa: BLE001 - the kernel raises it
        _send(reply, error)
        return 1
    log = log_path(connection.name)
    _redirect(sys.stderr, _new_file(log))
    wanted = _send(reply, connection)
    while wanted and not stop.wait(SIGNAL_POLL_S) and _is_found(connection):
        pass
    service.stop()
    log.unlink(missing_ok=True)
    return 0


def _new_file(path: Path) -> int:
    """Make a file that only this user reads, in the place of an older one."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _is_found(connection: Connection) -> bool:
    """Whether others find this service. A file that was removed, as at a user's last log-out, is written again."""
    if discovery.read(connection.name) == connection:
        return True
    try:
        discovery.publish(
            connection.name,
            connection.target,
            connection.token,
            lasting=connection.lasting,
            certificate=connection.certificate,
            settings=connection.settings,
        )
    except DsnbError as error:
        print(f"the service {connection.name!r} ends, since nobody could find it: {error}", file=sys.stderr)
        return False
    except OSError:  # the folder cannot be written now
        return True
    return True


def _start(name: str | None, count: WorkerCount, settings: ClusterSettings) -> tuple[DataService, Connection]:
    from dsnb.notebook.start import start_here

    service = start_here(name, count, settings)
    connection = discovery.read(service.name)
    assert connection is not None
    return service, connection


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
