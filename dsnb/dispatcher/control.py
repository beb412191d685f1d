"""The control call, which pauses, resumes or cancels jobs and drains, removes or scales workers; see also `admin`."""

from __future__ import annotations

from collections.abc import Callable

from dsnb.dispatcher import events as e
from dsnb.dispatcher.handlers.admin import find_worker
from dsnb.dispatcher.service import Dispatcher
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.wire.addresses import target_address
from dsnb.wire.messages import ControlRequest

_JOB_EVENTS: dict[str, Callable[..., e.Event]] = {"pause": e.PauseJob, "resume": e.ResumeJob, "cancel": e.CancelJob}
_WORKER_EVENTS: dict[str, Callable[..., e.Event]] = {"drain": e.DrainWorker, "remove": e.RemoveWorker}


def run_action(dispatcher: Dispatcher, request: ControlRequest) -> str:
    """Carry out a control request; returns the resulting state of the job, the worker or the service, as text.

    Raises:
        NotFoundError: there is no such job or worker.
        FailedPreconditionError: the service does not start its workers itself.
        InvalidArgumentError: the action is unknown.
    """
    actions: dict[str, Callable[[Dispatcher, ControlRequest], str]] = {
        **dict.fromkeys(_JOB_EVENTS, _job_action),
        **dict.fromkeys(_WORKER_EVENTS, _worker_action),
        "scale": _scale,
    }
    if request.action not in actions:
        raise InvalidArgumentError(f"the action {request.action!r} is unknown", hint=f"use {', '.join(actions)}")
    return actions[request.action](dispatcher, request)


def _job_action(dispatcher: Dispatcher, request: ControlRequest) -> str:
    return str(dispatcher.handle(_JOB_EVENTS[request.action](name=request.name, requested_by=request.requested_by)))


def _worker_action(dispatcher: Dispatcher, request: ControlRequest) -> str:
    with dispatcher.locked():
        worker = find_worker(dispatcher.core, request.name)
    if (
        worker is not None and dispatcher.worker_pool is not None
    ):  # before the worker leaves: otherwise the pool would take its exit for a death
        dispatcher.worker_pool.release_worker(worker.uid, at_once=request.action == "remove")
    return str(dispatcher.handle(_WORKER_EVENTS[request.action](name=request.name, requested_by=request.requested_by)))


def _scale(dispatcher: Dispatcher, request: ControlRequest) -> str:
    if dispatcher.worker_pool is None:
        raise FailedPreconditionError(
            "the workers of this service were started one by one",
            did="nothing was changed",
            hint=f"add workers with `dsnb worker --dispatcher {target_address(dispatcher.target)}`, take one away with "
            "svc.drain(name)",
        )
    dispatcher.worker_pool.scale(request.workers)
    return f"{request.workers} workers"
