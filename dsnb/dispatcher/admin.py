"""What people do to a service that runs: pause, resume and cancel jobs, drain and remove workers.

Theory of operation. Each of these asks for a state, not for a change, so that asking twice is asking once. What is
decided is in the journal before anybody hears of it, and the answer says how things are then.

A *paused* job keeps its readers, its tasks and all that they hold; its tasks produce and hand out nothing until it is
resumed, those of workers that come meanwhile included. A *cancelled* job is gone, with what it held; its clients stay
known until each of them has heard who cancelled it. The name is free at once: who reads on begins a job anew. A worker
that is *drained* finishes what it has and leaves; one that is *removed* counts as lost, and what it had with it.
"""

from __future__ import annotations

from dsnb.dispatcher import events as e
from dsnb.dispatcher import jobs, membership
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.state import Job, Worker
from dsnb.errors import NotFoundError, did_you_mean


def pause(core: Context, event: e.PauseJob) -> str:
    """Hand out nothing more of a job.

    Raises:
        NotFoundError: there is no such job.
    """
    job = jobs.known_job(core, event.name)
    if not job.paused_by:
        core.record(r.JobPaused(name=job.name, paused_by=event.requested_by or "somebody"))
        _notify_all(core, job)
        _announce(core, f"job {job.name!r} was paused", event.requested_by)
    return "paused"


def resume(core: Context, event: e.ResumeJob) -> str:
    """Go on with a job that was paused.

    Raises:
        NotFoundError: there is no such job.
    """
    job = jobs.known_job(core, event.name)
    if job.paused_by:
        core.record(r.JobResumed(name=job.name))
        _notify_all(core, job)
        _announce(core, f"job {job.name!r} was resumed", event.requested_by)
    return "running" if job.clients else "idle"


def cancel(core: Context, event: e.CancelJob) -> str:
    """End a job and each of its readers.

    Raises:
        NotFoundError: there is no such job, and none of that name was cancelled of late.
    """
    if event.name in core.state.cancelled_jobs:
        return "cancelled"
    job, by = jobs.known_job(core, event.name), event.requested_by or "somebody"
    clients = job.clients
    for iteration in job.iterations.values():
        jobs.free_iteration(core, job, iteration)
    core.transient.jobs_unused_since.pop(job.name, None)
    core.record(r.JobCancelled(name=job.name, cancelled_by=by))
    if not core.state.datasets[job.dataset_id].chosen:
        core.transient.datasets_unused_since[job.dataset_id] = core.now
    core.instruct(*(e.NotifyCancelled(client_id=client_id, cancelled_by=by) for client_id in clients))
    readers = f"; {len(clients)} reader{'' if len(clients) == 1 else 's'} ended" if clients else ""
    _announce(core, f"job {job.name!r} was cancelled", event.requested_by, readers)
    return "cancelled"


def drain(core: Context, event: e.DrainWorker) -> str:
    """Have a worker finish what it has and leave.

    Raises:
        NotFoundError: there is no such worker, and was none of late.
    """
    worker = find_worker(core, event.name)
    if worker is None:
        return "gone"
    if not worker.draining:
        membership.worker_drains(core, e.WorkerDrains(uid=worker.uid))
        _announce(core, f"worker {worker.name} drains", event.requested_by)
    core.instruct(e.SendDrainOrder(worker=worker.uid))
    return "draining"


def remove(core: Context, event: e.RemoveWorker) -> str:
    """Do without a worker from now on; what it had in hand is lost, and told.

    Raises:
        NotFoundError: there is no such worker, and was none of late.
    """
    worker = find_worker(core, event.name)
    if worker is None:
        return "gone"
    by = f" by {event.requested_by}" if event.requested_by else ""
    core.instruct(e.DisconnectWorker(worker=worker.uid, reason=f"worker {worker.name} was removed{by}"))
    membership.remove_worker(core, worker, f"was removed{by}")
    return "gone"


def find_worker(core: Context, name: str) -> Worker | None:
    """The worker of that name, address or uid; None if it is gone.

    Raises:
        NotFoundError: there never was one, or long ago.
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
    """Have all tasks and readers of a job learn whether it is paused."""
    for iteration in job.iterations.values():
        core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
        for task_id in iteration.tasks:
            core.instruct(e.UpdateTask(worker=core.state.tasks[task_id].worker, task_id=task_id))


def _announce(core: Context, text: str, requested_by: str, more: str = "") -> None:
    core.instruct(e.Announce(level="info", text=f"{text}{f' by {requested_by}' if requested_by else ''}{more}"))
