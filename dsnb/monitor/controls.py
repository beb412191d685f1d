"""What can be done to a service that runs, from wherever it is watched; each call is confirmed by the service."""

from __future__ import annotations

import getpass
import os
import socket

from dsnb.wire.channel import open_channel
from dsnb.wire.messages import ControlRequest, EvictTrainerRequest
from dsnb.wire.methods import CONTROL, EVICT_TRAINER, Method, Reply, Request

_SCALE_TIMEOUT_S = 90.0
"""Worker processes take a second each to start, and those that go may finish what they have for a while."""


class Controls:
    """Changes one service. Asking twice is asking once; each call waits for the service's word. For any thread.

    Args:
        target: Where the service listens.
        token: The service's; None to look it up by the address.
        requested_by: Who asks, as people are told, in events and in the errors of readers that were cancelled.
        timeout: Seconds to wait for the service's word.

    Raises:
        UnavailableError: the service does not answer in time.
        NotFoundError: there is no such job, worker or trainer; the hint names those that are like it.
        PermissionDeniedError: the token is missing or wrong.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     Controls(svc.target, svc.token, by="me").scale(2)
        '2 workers'
    """

    def __init__(self, target: str, token: str | None, *, requested_by: str, timeout: float = 5.0) -> None:
        self._target = target
        self._token = token
        self._requested_by = requested_by
        self._timeout = timeout

    def pause(self, job: str) -> str:
        """Have a job hand out nothing more after what is in flight; "paused"."""
        return self._control("pause", job)

    def resume(self, job: str) -> str:
        """Have a paused job go on; "running", or "idle" if nobody reads it."""
        return self._control("resume", job)

    def cancel(self, job: str) -> str:
        """End a job and each of its readers, with a `CancelledError` that says who did it; "cancelled"."""
        return self._control("cancel", job)

    def drain(self, worker: str) -> str:
        """Have a worker (by name or address) finish what it has and leave; "draining", or "gone"."""
        return self._control("drain", worker)

    def remove(self, worker: str) -> str:
        """Do without a worker (by name or address) at once; what it had in hand is lost; "gone"."""
        return self._control("remove", worker)

    def scale(self, workers: int) -> str:
        """Have so many workers, where the service starts them itself; as in "2 workers"."""
        return self._control("scale", workers=workers, timeout=max(_SCALE_TIMEOUT_S, self._timeout))

    def evict(self, job: str, trainer_id: str) -> str:
        """Keep nothing for a trainer of the cross-trainer cache any longer; "sent away"."""
        self._call(EVICT_TRAINER, EvictTrainerRequest(job_name=job, trainer_id=trainer_id), self._timeout)
        return "sent away"

    def _control(self, action: str, name: str = "", workers: int = 0, timeout: float | None = None) -> str:
        request = ControlRequest(action=action, name=name, requested_by=self._requested_by, workers=workers)
        return self._call(CONTROL, request, timeout or self._timeout).state

    def _call(self, method: Method[Request, Reply], request: Request, timeout: float) -> Reply:
        channel = open_channel(self._target, self._token)
        try:
            return channel.call(method, request, timeout=timeout)
        finally:
            channel.close()


def describe_caller(action: str) -> str:
    """Who asks, in words, as in `svc.cancel() of anna in process 4711 on host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = str(os.getuid())
    return f"{action} of {user} in process {os.getpid()} on {socket.gethostname()}"
