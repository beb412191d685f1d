"""The call by which people change a service that runs; what follows is decided in `controls`."""

from __future__ import annotations

from collections.abc import Callable

from dsnb.dispatcher import events as e
from dsnb.dispatcher.controls import find_worker
from dsnb.dispatcher.desk import Desk
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.wire.addresses import split_target
from dsnb.wire.messages import ControlRequest

_JOBS: dict[str, Callable[..., e.Event]] = {"pause": e.PauseJob, "resume": e.ResumeJob, "cancel": e.CancelJob}
_WORKERS: dict[str, Callable[..., e.Event]] = {"drain": e.DrainWorker, "remove": e.RemoveWorker}


def control(desk: Desk, request: ControlRequest) -> str:
    """Do what is asked for; how the job or the worker is from now on, in a word.

    Raises:
        NotFoundError: there is no such job or worker.
        FailedPreconditionError: the service does not start its workers itself.
        InvalidArgumentError: the action is unknown.
    """
    actions: dict[str, Callable[[Desk, ControlRequest], str]] = {
        **dict.fromkeys(_JOBS, _job),
        **dict.fromkeys(_WORKERS, _worker),
        "scale": _scale,
    }
    if request.action not in actions:
        raise InvalidArgumentError(f"the action {request.action!r} is unknown", hint=f"use {', '.join(actions)}")
    return actions[request.action](desk, request)


def _job(desk: Desk, request: ControlRequest) -> str:
    return str(desk.handle(_JOBS[request.action](name=request.name, by=request.by)))


def _worker(desk: Desk, request: ControlRequest) -> str:
    with desk.locked():
        worker = find_worker(desk.core, request.name)
    if worker is not None and desk.owner is not None:  # before it goes, which else would look like its death
        desk.owner.let_go(worker.uid, at_once=request.action == "remove")
    return str(desk.handle(_WORKERS[request.action](name=request.name, by=request.by)))


def _scale(desk: Desk, request: ControlRequest) -> str:
    if desk.owner is None:
        raise FailedPreconditionError(
            "the workers of this service were started one by one",
            did="nothing was changed",
            hint=f"add workers with `dsnb worker --dispatcher {split_target(desk.target)}`, take one away with "
            "svc.drain(name)",
        )
    desk.owner.scale(request.workers)
    return f"{request.workers} workers"
