"""What can be done to a service that runs, from wherever it is watched; each call is confirmed by the service."""

from __future__ import annotations

import getpass
import os
import socket

from dsnb.errors import PermissionDeniedError
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import ControlRequest, DismissRequest
from dsnb.wire.methods import CONTROL, DISMISS

_SCALE_S = 90.0
"""Worker processes take a second each to start, and those that go may finish what they have for a while."""


class Controls:
    """Changes one service. Asking twice is asking once; each call waits for the service's word. For any thread.

    Args:
        target: Where the service listens.
        token: What to show.
        by: Who asks, as people are told, in events and in the errors of readers that were cancelled.
        timeout: Seconds to wait for the service's word.
        read_only: Why nothing may be changed from here; empty where it may.

    Raises:
        UnavailableError: the service does not answer in time.
        NotFoundError: there is no such job, worker or trainer; the hint names those that are like it.
        PermissionDeniedError: the token is missing or wrong, or nothing may be changed from here.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     Controls(svc.target, svc.token, by="me").scale(2)
        '2 workers'
    """

    def __init__(self, target: str, token: str, *, by: str, timeout: float = 5.0, read_only: str = "") -> None:
        self._target = target
        self._token = token
        self._by = by
        self._timeout = timeout
        self.read_only = read_only

    def pause(self, job: str) -> str:
        """Have a job hand out nothing more after what is in flight; "paused"."""
        return self._ask("pause", job)

    def resume(self, job: str) -> str:
        """Have a paused job go on; "running", or "idle" if nobody reads it."""
        return self._ask("resume", job)

    def cancel(self, job: str) -> str:
        """End a job and each of its readers, with a `CancelledError` that says who did it; "cancelled"."""
        return self._ask("cancel", job)

    def drain(self, worker: str) -> str:
        """Have a worker (by name or address) finish what it has and leave; "draining", or "gone"."""
        return self._ask("drain", worker)

    def remove(self, worker: str) -> str:
        """Do without a worker (by name or address) at once; what it had in hand is lost; "gone"."""
        return self._ask("remove", worker)

    def scale(self, workers: int) -> str:
        """Have so many workers, where the service starts them itself; as in "2 workers"."""
        return self._ask("scale", workers=workers, timeout=max(_SCALE_S, self._timeout))

    def send_away(self, job: str, trainer_id: str) -> str:
        """Keep nothing for a trainer of the cross-trainer cache any longer; "sent away"."""
        self._check()
        channel = open_channel(self._target, self._token)
        try:
            channel.call(DISMISS, DismissRequest(job_name=job, trainer_id=trainer_id), timeout=self._timeout)
        finally:
            channel.close()
        return "sent away"

    def _ask(self, action: str, name: str = "", workers: int = 0, timeout: float | None = None) -> str:
        self._check()
        channel = open_channel(self._target, self._token)
        try:
            request = ControlRequest(action=action, name=name, by=self._by, workers=workers)
            return channel.call(CONTROL, request, timeout=timeout or self._timeout).state
        finally:
            channel.close()

    def _check(self) -> None:
        if self.read_only:
            raise PermissionDeniedError(
                f"nothing can be changed from here: {self.read_only}",
                did="nothing was changed",
                hint="use svc.pause, svc.drain and so on in a notebook, or `dsnb job` on the service's machine",
            )


def this_process(what: str) -> str:
    """Who asks, in words, as in `svc.cancel() of anna in process 4711 on host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = str(os.getuid())
    return f"{what} of {user} in process {os.getpid()} on {socket.gethostname()}"
