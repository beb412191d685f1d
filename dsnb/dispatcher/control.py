"""The control call: it pauses, resumes or cancels jobs, drains, removes or scales workers, and switches autoscaling.

See also `handlers.admin`.
"""

from __future__ import annotations

from dsnb.dispatcher.handlers.admin import find_worker
from dsnb.dispatcher.service import Dispatcher
from dsnb.errors import FailedPreconditionError
from dsnb.wire.addresses import target_address
from dsnb.wire.messages import ControlRequest


def run_action(dispatcher: Dispatcher, request: ControlRequest) -> str:
    """Carry out a control request; returns the resulting state of the job, the worker or the service, as text.

    Raises:
        NotFoundError: there is no such job or worker.
        FailedPreconditionError: the service does not start its workers itself.
        InvalidArgumentError: the action is unknown.
    """
    if request.action == "scale":
        return _scale(dispatcher, request.workers)
    if request.action == "autoscale":
        return _autoscale(dispatcher, request)
    if request.action in ("drain", "remove") and dispatcher.worker_pool is not None:
        with dispatcher.locked():
            worker = find_worker(dispatcher.core, request.name)
        if worker is not None:  # before the worker leaves: otherwise the pool would take its exit for a death
            dispatcher.worker_pool.release_worker(worker.uid, at_once=request.action == "remove")
    return str(dispatcher.handle(request))


def _autoscale(dispatcher: Dispatcher, request: ControlRequest) -> str:
    dispatcher.autoscale(request.minimum, request.maximum)
    by = f" by {request.requested_by}" if request.requested_by else ""
    if not request.maximum:
        dispatcher.announce(f"autoscaling was switched off{by}", "info")
        return "off"
    limits = f"{request.minimum} to {request.maximum} workers"
    dispatcher.announce(f"autoscaling was switched on{by}: {limits}", "info")
    return limits


def _scale(dispatcher: Dispatcher, workers: int) -> str:
    if dispatcher.worker_pool is None:
        raise FailedPreconditionError(
            "the workers of this service were started one by one",
            did="nothing was changed",
            hint=f"add workers with `dsnb worker --dispatcher {target_address(dispatcher.target)}`, take one away with "
            "svc.drain(name)",
        )
    notice = dispatcher.worker_pool.scale(workers)
    count = f"{workers} worker" if workers == 1 else f"{workers} workers"
    return f"{count}; {notice}" if notice else count
