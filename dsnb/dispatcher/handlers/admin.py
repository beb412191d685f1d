"""Administration of a running service: pause, resume and cancel jobs, drain and remove workers.

Theory of operation. Each request asks for a state, not for a change, so it is idempotent. The decision is in the
journal before any reply or notification is sent, and the reply is the resulting state.

A *paused* job keeps its clients, its tasks and all that they hold. Its tasks, including those of workers that join
while it is paused, produce and send nothing until it is resumed. A *cancelled* job is gone, with all that it held; its
clients stay known until each of them has been notified who cancelled it. The name is free at once: a client that reads
it again creates a new job. A worker that is *drained* finishes what it has and leaves. The tasks of a
worker that is *removed* continue on other workers; elements that none of them can produce again are counted as lost.
"""

from __future__ import annotations

from collections.abc import Callable

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers import jobs, membership, receipts
from dsnb.dispatcher.state import Job, Worker
from dsnb.errors import InvalidArgumentError, NotFoundError, did_you_mean
from dsnb.wire.messages import ControlRequest


def control(core: Context, request: ControlRequest) -> str:
    """Carry out a request about a job or a worker, and return the state that the job or worker has then.

    Raises:
        NotFoundError: there is no such job or worker.
        InvalidArgumentError: the action is unknown.
    """
    if request.action not in _ACTIONS:
        raise InvalidArgumentError(
            f"the action {request.action!r} is unknown", hint=f"use {', '.join((*_ACTIONS, 'scale', 'autoscale'))}"
        )
    return _ACTIONS[request.action](core, request)


def _pause(core: Context, request: ControlRequest) -> str:
    """Pause a job: its tasks produce and send nothing until it is resumed.

    Raises:
        NotFoundError: there is no such job.
    """
    job = jobs.known_job(core, request.name)
    if not job.paused_by:
        core.record(r.JobPaused(name=job.name, paused_by=request.requested_by or "somebody"))
        _notify_all(core, job)
        _announce(core, f"job {job.name!r} was paused", request.requested_by)
    return "paused"


def _resume(core: Context, request: ControlRequest) -> str:
    """Resume a paused job.

    Raises:
        NotFoundError: there is no such job.
    """
    job = jobs.known_job(core, request.name)
    if job.paused_by:
        core.record(r.JobResumed(name=job.name))
        _notify_all(core, job)
        _announce(core, f"job {job.name!r} was resumed", request.requested_by)
    return "running" if job.clients else "idle"


def _cancel(core: Context, request: ControlRequest) -> str:
    """Drop a job and notify all of its clients.

    Raises:
        NotFoundError: there is no such job, and no job of that name was cancelled recently.
    """
    if request.name in core.state.cancelled_jobs:
        return "cancelled"
    job, by = jobs.known_job(core, request.name), request.requested_by or "somebody"
    clients = job.clients
    receipt = receipts.last_receipt(core, job, f"was cancelled by {by}")
    for iteration in job.iterations.values():
        jobs.free_iteration(core, job, iteration)
    core.transient.jobs_unused_since.pop(job.name, None)
    core.record(r.JobCancelled(name=job.name, cancelled_by=by, receipt=receipt))
    if not core.state.datasets[job.dataset_id].chosen:
        core.transient.datasets_unused_since[job.dataset_id] = core.now
    core.instruct(*(e.NotifyCancelled(client_id=client_id, cancelled_by=by) for client_id in clients))
    readers = f"; {len(clients)} reader{'' if len(clients) == 1 else 's'} ended" if clients else ""
    _announce(core, f"job {job.name!r} was cancelled", request.requested_by, readers)
    return "cancelled"


def _drain(core: Context, request: ControlRequest) -> str:
    """Have a worker finish what it has and leave.

    Raises:
        NotFoundError: there is no such worker, and there was none recently.
    """
    worker = find_worker(core, request.name)
    if worker is None:
        return "gone"
    if not worker.draining:
        membership.worker_drains(core, e.WorkerDrains(uid=worker.uid))
        _announce(core, f"worker {worker.name} drains", request.requested_by)
    core.instruct(e.SendDrainOrder(worker=worker.uid))
    return "draining"


def _remove(core: Context, request: ControlRequest) -> str:
    """Remove a worker at once, as if it had been lost.

    Raises:
        NotFoundError: there is no such worker, and there was none recently.
    """
    worker = find_worker(core, request.name)
    if worker is None:
        return "gone"
    by = f" by {request.requested_by}" if request.requested_by else ""
    core.instruct(e.DisconnectWorker(worker=worker.uid, reason=f"worker {worker.name} was removed{by}"))
    membership.remove_worker(core, worker, f"was removed{by}")
    return "gone"


def find_worker(core: Context, name: str) -> Worker | None:
    """The worker with that name, address or uid; None if it was there recently and is gone.

    Raises:
        NotFoundError: there is no such worker, and there was none recently.
    """
    workers = core.state.workers.values()
    found = next((worker for worker in workers if name in (worker.name, worker.address, worker.uid)), None)
    if found is None and not any(name in names for names in core.transient.former_workers):
        names = [f"{worker.name} ({worker.address})" for worker in workers]
        known = [known for worker in workers for known in (worker.name, worker.address)]
        raise NotFoundError(
            f"there is no worker {name!r}",
            did="nothing was changed",
            hint=f"{did_you_mean(name, known)}workers of this service: {', '.join(sorted(names)) or 'none'}",
        )
    return found


def _notify_all(core: Context, job: Job) -> None:
    """Send all tasks and clients of a job whether it is paused."""
    for iteration in job.iterations.values():
        core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
        for task_id in iteration.tasks:
            core.instruct(e.UpdateTask(worker=core.state.tasks[task_id].worker, task_id=task_id))


def _announce(core: Context, text: str, requested_by: str, more: str = "") -> None:
    core.instruct(e.Announce(level="info", text=f"{text}{f' by {requested_by}' if requested_by else ''}{more}"))


_ACTIONS: dict[str, Callable[[Context, ControlRequest], str]] = {
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "drain": _drain,
    "remove": _remove,
}
