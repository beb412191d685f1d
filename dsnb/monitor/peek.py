"""The newest elements of a job as one of its workers has them, fetched on demand."""

from __future__ import annotations

import time

import msgspec

from dsnb.errors import NotFoundError
from dsnb.monitor.snapshot import JobStatus, Snapshot, TaskStatus, WorkerStatus
from dsnb.wire.channel import open_channel
from dsnb.wire.codec import decode
from dsnb.wire.messages import ElementPreview, Empty, PeekRequest
from dsnb.wire.methods import PEEK, STATUS

_LEAST_S = 0.5
"""The worker gets that many seconds to answer, however long the dispatcher took."""


class PeekedJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a peek at a job found.

    Attributes:
        job: The job's name.
        worker: The name of the worker that was asked.
        elements: Its newest elements, the newest first; empty if it keeps none at present.
    """

    job: str
    worker: str
    elements: tuple[ElementPreview, ...] = ()


def peek(target: str, token: str | None, job: str, timeout: float = 5.0) -> PeekedJob:
    """Look at the newest elements of a job on the worker that keeps the most of them. Its readers do not notice.

    Args:
        target: The address of the service.
        token: The service's token; None to look it up by the address.
        job: The job's name.
        timeout: Seconds that the dispatcher and the worker may take to answer, together.

    Raises:
        NotFoundError: there is no such job, or no worker has a task of it.
        UnavailableError: the service or the worker does not answer.
    """
    deadline = time.monotonic() + timeout
    channel = open_channel(target, token)
    try:
        snapshot = decode(Snapshot, channel.call(STATUS, Empty(), timeout=timeout))
        proven = channel.token
    finally:
        channel.close()
    worker, task = _fullest_task(snapshot, job)
    channel = open_channel(worker.address, proven, worker.uid)
    try:
        left = max(_LEAST_S, deadline - time.monotonic())
        reply = channel.call(PEEK, PeekRequest(task_id=task.task_id), timeout=left)
    finally:
        channel.close()
    return PeekedJob(job=job, worker=worker.name, elements=reply.elements)


def _fullest_task(snapshot: Snapshot, name: str) -> tuple[WorkerStatus, TaskStatus]:
    """The task of a job that has the most elements in memory, with its worker; the newest epoch first.

    Raises:
        NotFoundError: there is none.
    """
    job: JobStatus | None = snapshot.job(name)
    if job is None:
        raise NotFoundError(f"there is no job {name}", did="nothing is shown", hint="it may have been forgotten")
    workers = {worker.name: worker for worker in snapshot.workers}
    held = [task for task in job.tasks if task.worker in workers and task.state not in {"pending", "failed"}]
    if not held:
        raise NotFoundError(
            f"no worker has elements of the job {name}",
            did="nothing is shown",
            hint="peek again once the job is read and a worker runs",
        )
    fullest = max(held, key=lambda task: (task.head > task.tail, task.iteration, task.head - task.tail))
    return workers[fullest.worker], fullest
