"""Changes to a running service, made from wherever it is watched; the service confirms each call."""

from __future__ import annotations

import getpass
import os
import socket

from dsnb.monitor.peek import PeekedJob, peek
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import ControlRequest, EvictTrainerRequest
from dsnb.wire.methods import CONTROL, EVICT_TRAINER, Method, Reply, Request

_SCALE_TIMEOUT_S = 90.0
"""Long, because each worker process takes a second to start, and workers that leave may finish their work first."""


class Controls:
    """Changes one service. Each call is idempotent and waits for the service's confirmation. Thread-safe.

    Args:
        target: The address of the service.
        token: The service's token; None to look it up by the address.
        requested_by: The name shown in events and in the errors of cancelled readers.
        timeout: Seconds to wait for the service's confirmation.

    Raises:
        UnavailableError: the service does not answer in time.
        NotFoundError: there is no such job, worker or trainer; the hint lists similar names.
        PermissionDeniedError: the token is missing or wrong.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     Controls(svc.target, svc.token, requested_by="me").scale(2)
        '2 workers'
    """

    def __init__(self, target: str, token: str | None, *, requested_by: str, timeout: float = 5.0) -> None:
        self._target = target
        self._token = token
        self._requested_by = requested_by
        self._timeout = timeout

    def pause(self, job: str) -> str:
        """Pause a job: its readers get no more elements than those in flight. Returns "paused"."""
        return self._control("pause", job)

    def resume(self, job: str) -> str:
        """Resume a paused job. Returns "running", or "idle" if the job has no readers."""
        return self._control("resume", job)

    def cancel(self, job: str) -> str:
        """Cancel a job: its readers raise a `CancelledError` that contains `requested_by`. Returns "cancelled"."""
        return self._control("cancel", job)

    def drain(self, worker: str) -> str:
        """Let a worker (by name or address) finish its work and leave. Returns "draining" or "gone"."""
        return self._control("drain", worker)

    def remove(self, worker: str) -> str:
        """Remove a worker (by name or address) at once; other workers continue its tasks. Returns "gone"."""
        return self._control("remove", worker)

    def scale(self, workers: int) -> str:
        """Set the number of workers, if the service starts its workers itself. Returns for example "2 workers"."""
        return self._control("scale", workers=workers, timeout=max(_SCALE_TIMEOUT_S, self._timeout))

    def autoscale(self, minimum: int, maximum: int) -> str:
        """Choose the number of workers automatically, between two limits; a maximum of 0 ends that."""
        request = ControlRequest(action="autoscale", requested_by=self._requested_by, minimum=minimum, maximum=maximum)
        return self._call(CONTROL, request, self._timeout).state

    def evict(self, job: str, trainer_id: str) -> str:
        """Evict a trainer of the cross-trainer cache: nothing is kept for it any more. Returns "evicted"."""
        request = EvictTrainerRequest(job_name=job, trainer_id=trainer_id, requested_by=self._requested_by)
        self._call(EVICT_TRAINER, request, self._timeout)
        return "evicted"

    def peek(self, job: str) -> PeekedJob:
        """Look at the newest elements of a job, as one of its workers has them. Changes nothing."""
        return peek(self._target, self._token, job, self._timeout)

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
    """A text for `requested_by`, such as `svc.cancel() of anna in process 4711 on host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = str(os.getuid())
    return f"{action} of {user} in process {os.getpid()} on {socket.gethostname()}"
