"""Workers and clients: who is here, who is lost, and what follows from it."""

from __future__ import annotations

from dsnb.dispatcher import cached_iterations, datasets, jobs, reassignment, shards, slots, splits
from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.state import Job, Task, Worker
from dsnb.errors import FailedPreconditionError, NotFoundError

JOBS_KEPT = 100
"""Jobs without a client that are kept in full."""

# ---- workers


def worker_arrives(core: Context, event: e.WorkerArrives) -> str:
    """Let a worker in, or in again, and give it its tasks; returns its name."""
    known = core.state.workers.get(event.uid)
    if known is None:
        before = next((w for w in core.state.workers.values() if w.address == event.address), None)
        served = _fully_read_iterations(core, before)
        known = _add_worker(core, event, before)
        for job, iteration in list(core.state.unfinished_iterations()):
            if iteration.shards:
                jobs.fill_shards(core, job.name, iteration)
            elif (job.name, iteration.number) in served or reassignment.waits_for_worker(core, job, iteration, known):
                continue
            elif not shards.has_task(core, iteration, known):
                jobs.add_task(core, job.name, iteration.number, event.uid)
                core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))
    else:
        _update_static_index(core, known)
        core.transient.sent_releases.pop(event.uid, None)  # one that was on its way may be lost, and is sent again
        core.transient.confirmed_releases.pop(event.uid, None)
        for task in core.state.tasks_of(event.uid):
            if task.task_id not in event.tasks:
                core.instruct(e.StartTask(worker=event.uid, task_id=task.task_id))
            else:  # it may have been paused or resumed meanwhile
                core.instruct(e.UpdateTask(worker=event.uid, task_id=task.task_id))
        for grant in event.grants:
            if (mine := core.state.tasks.get(grant.task_id)) is not None and mine.worker == event.uid:
                splits.restore_grant(core, mine, grant)
    if known.draining:
        core.instruct(e.SendDrainOrder(worker=event.uid))
    _set_worker_deadline(core, event.uid, core.config.worker_timeout_ms)
    for task_id in event.tasks:
        if task_id not in core.state.tasks or core.state.tasks[task_id].worker != event.uid:
            core.instruct(e.DropTask(worker=event.uid, task_id=task_id))
    for _, iteration in list(core.state.unfinished_iterations()):
        reassignment.retry_unassigned(core, iteration)
    return known.name


def assign_static_indices(core: Context) -> None:
    """Give the workers that the journal knows their places in the list that this dispatcher was started with.

    It may be another list than the last one's, or the first. A worker keeps its place where the new list has it for its
    address; one that the list does not have has no place, and is refused when it comes back.
    """
    entries, workers = core.config.worker_addresses or (), core.state.workers.values()
    taken: dict[int, str] = {}
    for worker in workers:
        if 0 <= worker.static_index < len(entries) and slots.matches_entry(
            entries[worker.static_index], worker.address
        ):
            taken[worker.static_index] = worker.address
    for worker in [worker for worker in workers if entries and taken.get(worker.static_index) != worker.address]:
        try:
            index = slots.static_index(entries, worker.address, taken)
        except FailedPreconditionError:
            index = -1
        else:
            taken[index] = worker.address
        if index != worker.static_index:
            core.record(r.StaticIndexAssigned(uid=worker.uid, static_index=index))


def _update_static_index(core: Context, worker: Worker) -> None:
    """Find a place for a worker that comes back without one.

    Raises:
        FailedPreconditionError: the list has none.
    """
    index = _find_static_index(core, worker.address)
    if index != worker.static_index and core.config.worker_addresses:
        core.record(r.StaticIndexAssigned(uid=worker.uid, static_index=index))
        for job, iteration in list(core.state.unfinished_iterations()):
            if iteration.shards:
                jobs.fill_shards(core, job.name, iteration)


def worker_reported(core: Context, event: e.WorkerReported) -> None:
    """Take a worker's report in."""
    if event.uid not in core.state.workers:
        raise NotFoundError(f"the worker {event.uid} is unknown", did="it was counted as lost", hint="register again")
    _set_worker_deadline(core, event.uid, core.config.worker_timeout_ms)
    core.transient.confirmed_releases[event.uid] = event.last_release
    for task_id, progress in event.progress.items():
        task = core.state.tasks.get(task_id)
        if task is not None and task.worker == event.uid and task.incarnation == progress.incarnation:
            _update_progress(core, task, progress)
    # A client that left while the worker could not be told: what it held is for others.
    for client_id in event.clients - core.state.clients.keys():
        jobs.release_client(core, event.uid, client_id, died=True)
    for task_id in event.partial:
        cached_iterations.close_iteration(core, task_id)
    for task_id in event.ended:
        task = core.state.tasks.get(task_id)
        if task is not None and task.worker == event.uid:  # else it was handed over since
            jobs.end_task(core, task_id)


def _update_progress(core: Context, task: Task, progress: e.Progress) -> None:
    before = core.transient.progress.get(task.task_id)
    core.transient.progress[task.task_id] = progress
    index = progress.resume_position.index if progress.resume_position is not None else 0
    behind = {trainer.trainer_id for trainer in progress.trainers if trainer.offset >= index > 0}
    news = behind - {trainer.trainer_id for trainer in task.consumed_positions if trainer.offset >= index}
    if news or (task.splits_done, task.resume_position) != (progress.splits_done, progress.resume_position):
        core.record(
            r.TaskProgressed(
                task_id=task.task_id,
                splits_done=progress.splits_done,
                resume_position=progress.resume_position,
                trainers=tuple(sorted(behind)),
            )
        )
    again = progress.repeated - (before.repeated if before and before.incarnation == progress.incarnation else 0)
    if again > 0:
        reassignment.announce_repeated(core, task.job, again)
    if progress.missing_elements and not (before and before.missing_elements):
        name = core.state.worker_name(task)
        text = (
            f"worker {name} took a part of job {task.job!r} over, and its pipeline made {progress.missing_elements:,} elements "
            "fewer than before: it does not repeat itself, so elements may have come twice or not at all"
        )
        core.instruct(e.Announce(level="warning", text=text))


def worker_disconnected(core: Context, event: e.WorkerDisconnected) -> None:
    """A worker's connection broke: it has a moment to come back."""
    if event.uid in core.state.workers:
        _set_worker_deadline(core, event.uid, core.config.reconnect_ms)


def worker_drains(core: Context, event: e.WorkerDrains) -> None:
    """A worker gets no more tasks and splits; what it has it finishes."""
    worker = core.state.workers.get(event.uid)
    if worker is not None and not worker.draining:
        core.record(r.WorkerDraining(uid=event.uid))
        for task in core.state.tasks_of(event.uid):
            if _never_began(core, task):
                jobs.drop_task_early(core, task)  # its readers need not wait for an end


def worker_leaves(core: Context, event: e.WorkerLeaves) -> None:
    """A worker says goodbye, or died; there is no need to wait for a silent one then."""
    worker = core.state.workers.get(event.uid)
    if worker is not None and event.exit_reason:
        remove_worker(core, worker, f"died: {event.exit_reason}", died=True)
    elif worker is not None:
        remove_worker(core, worker, "was stopped")


def _never_began(core: Context, task: Task) -> bool:
    iteration = core.state.iteration(task.job, task.iteration)
    return bool(iteration.providers) and not task.ended and not task.splits_given and iteration.rounds is None


def _dynamic(core: Context, task: Task) -> bool:
    return core.state.jobs[task.job].mode == "DYNAMIC"


def _fully_read_iterations(core: Context, worker: Worker | None) -> set[tuple[str, int]]:
    """Where a worker's readers have had all of a pass: one that takes its place must not produce it again."""
    tasks = core.state.tasks_of(worker.uid) if worker else []
    return {(task.job, task.iteration) for task in tasks if task.ended and not _dynamic(core, task)}


def _add_worker(core: Context, event: e.WorkerArrives, before: Worker | None) -> Worker:
    """A new worker; one at the address of another that is thought to be there is that one, started again."""
    index = _find_static_index(core, event.address)
    name = before.name if before else event.name or f"w{core.next_number('worker')}"
    core.record(
        r.WorkerJoined(
            uid=event.uid,
            name=name,
            address=event.address,
            isolation=event.isolation,
            pid=event.pid,
            static_index=index,
        )
    )
    if before is not None:
        for task in core.state.tasks_of(before.uid):
            _detach_old_process(core, task, before)
        core.record(r.WorkerLeft(uid=before.uid))
        core.transient.forget_worker(before.uid)
    core.instruct(e.Announce(level="info", text=f"worker {name} {'came back' if before else 'joined'}"))
    return core.state.workers[event.uid]


def _find_static_index(core: Context, address: str) -> int:
    """A worker's place in the fixed list, if there is one."""
    entries = core.config.worker_addresses
    taken = {worker.static_index: worker.address for worker in core.state.workers.values() if worker.static_index >= 0}
    return slots.static_index(entries, address, taken) if entries else -1


def _detach_old_process(core: Context, task: Task, before: Worker) -> None:
    if task.ended:
        jobs.drop_task(core, task.task_id)
        core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))
    elif core.state.jobs[task.job].num_consumers:  # it begins anew, so to consumers it is another one
        _drop_coordinated_task(core, task, before, "was started again")
    else:
        reassignment.unassign(core, task, before.name, "was started again", died=True)


def remove_worker(core: Context, worker: Worker, reason: str, *, died: bool = False) -> None:
    """Do without a worker: its tasks go on elsewhere, or what they would have made is counted and told.

    It `died`, or left by somebody's will.
    """
    core.transient.forget_worker(worker.uid)
    core.transient.former_workers.append((worker.name, worker.address, worker.uid))
    tasks = core.state.tasks_of(worker.uid)
    core.instruct(e.Announce(level="warning" if died else "info", text=f"worker {worker.name} {reason}"))
    for task in tasks:
        iteration = core.state.iteration(task.job, task.iteration)
        if task.ended:
            jobs.drop_task(core, task.task_id)
            jobs.finish_if_tasks_ended(core, task.job, iteration)
            core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))
        elif core.state.jobs[task.job].num_consumers:
            _drop_coordinated_task(core, task, worker, reason)
    left = [task for task in tasks if task.task_id in core.state.tasks]
    for task in left:
        reassignment.unassign(core, task, worker.name, reason, died=died)
    core.record(r.WorkerLeft(uid=worker.uid))
    for job, number in dict.fromkeys((task.job, task.iteration) for task in left):
        reassignment.retry_unassigned(core, core.state.iteration(job, number))


def _drop_coordinated_task(core: Context, task: Task, worker: Worker, reason: str) -> None:
    """A task of a coordinated read is gone; what it had given to all consumers is still theirs (see `rounds`)."""
    record = r.TaskLost(task_id=task.task_id, worker=worker.name, splits=0, reason=reason)
    core.record(record)
    core.instruct(e.NotifyLoss(job=task.job, iteration=task.iteration, loss=record))
    jobs.drop_task(core, task.task_id)
    core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))


def _set_worker_deadline(core: Context, uid: str, within_ms: int) -> None:
    core.transient.worker_deadlines[uid] = core.now + within_ms / 1000


# ---- clients


def client_heartbeat(core: Context, event: e.ClientHeartbeat) -> None:
    """A client gave a sign of life."""
    if event.client_id not in core.state.clients:
        raise jobs.unknown_client_error(event.client_id)
    core.transient.disconnected_clients.discard(event.client_id)
    core.transient.client_deadlines[event.client_id] = core.now + core.config.client_timeout_ms / 1000


def client_disconnected(core: Context, event: e.ClientDisconnected) -> None:
    """A client's connection broke: it has a moment to come back."""
    if event.client_id in core.state.clients:
        core.transient.client_deadlines[event.client_id] = core.now + core.config.reconnect_ms / 1000
        core.transient.disconnected_clients.add(event.client_id)


def client_leaves(core: Context, event: e.ClientLeaves) -> None:
    """A client is done; with the last one a pass waits to be collected, an anonymous job goes at once."""
    client = core.state.clients.get(event.client_id)
    if client is None:
        return
    if client.cancelled_by:
        core.record(r.ClientLeft(client_id=client.client_id))
        core.transient.forget_client(client.client_id)
        return
    job = core.state.jobs[client.job]
    iteration = job.iterations[client.iteration]
    jobs.remove_client(core, client, event.holdings, died=event.died)
    if not iteration.finished:
        reassignment.count_undelivered(core, job.name, iteration, client.trainer_id, event.holdings)
    cached_iterations.finish_if_all_ended(core, job.name, iteration)
    if iteration.clients:
        return
    core.transient.iterations_unread_since[job.name, iteration.number] = core.now
    if iteration.orphaned and not iteration.finished:
        text = (
            f"the last reader of pass {iteration.number} of job {job.name!r} was lost: what it had not consumed waits "
            f"for another reader for {_job_gc_timeout_s(core):g} seconds"
        )
        core.instruct(e.Announce(level="warning", text=text))
    if not job.clients:
        core.transient.jobs_unused_since[job.name] = core.now
        if job.anonymous and not iteration.orphaned:
            jobs.drop_job(core, job)


def _job_gc_timeout_s(core: Context) -> float:
    """How long a job without readers is kept; those without a name are kept for a while at most."""
    return (600_000 if core.config.job_gc_timeout_ms == -1 else core.config.job_gc_timeout_ms) / 1000


# ---- time


def tick(core: Context, _event: e.Tick) -> None:
    """Look at all deadlines."""
    interval = core.config.job_gc_check_interval_ms / 1000
    late = core.now - core.transient.last_tick - 2 * interval
    core.transient.last_tick = core.now
    if late > 0:
        core.transient.postpone(late)
    for uid in [uid for uid, until in core.transient.worker_deadlines.items() if until < core.now]:
        remove_worker(core, core.state.workers[uid], "was lost", died=True)
    for client in [client for client, until in core.transient.client_deadlines.items() if until < core.now]:
        client_leaves(core, e.ClientLeaves(client_id=client, died=True))
    _collect_garbage(core)


def _collect_garbage(core: Context) -> None:
    """Free passes that nobody has read for a while, and then the records of their jobs."""
    for (name, number), since in list(core.transient.iterations_unread_since.items()):
        job = core.state.jobs.get(name)
        iteration = job.iterations.get(number) if job else None
        if job is None or iteration is None:
            core.transient.iterations_unread_since.pop((name, number), None)
            continue
        age_ms = 1000 * (core.now - since)
        if iteration.finished:
            jobs.drop_iteration(core, job, iteration)
        elif age_ms >= core.config.task_gc_timeout_ms and not _keeps_splits(core, job):
            if iteration.orphaned and age_ms < 1000 * _job_gc_timeout_s(core):
                if reassignment.suspend(core, iteration):
                    del core.transient.iterations_unread_since[name, number]
                else:  # its workers keep what was not consumed
                    reassignment.hand_over_from_draining(core, iteration)
            elif job.anonymous and not job.clients:  # nobody else can come for it
                jobs.drop_job(core, job)
            else:
                jobs.drop_iteration(core, job, iteration)
    for name, since in list(core.transient.jobs_unused_since.items()):
        job = core.state.jobs.get(name)
        if job is None:
            del core.transient.jobs_unused_since[name]
        elif core.now - since >= _job_gc_timeout_s(core) and _can_drop_job(core, job):
            jobs.drop_job(core, job)
    _archive(core)
    datasets.drop_unused(core)


def _archive(core: Context) -> None:
    """Keep the newest jobs that nobody reads whole; of older ones, only that their passes are over."""
    there = [job for name in core.transient.jobs_unused_since if (job := core.state.jobs[name]).iterations]
    for job in there[: max(0, len(there) - JOBS_KEPT)]:
        jobs.archive_iterations(core, job, kept=0)


def _keeps_splits(core: Context, job: Job) -> bool:
    """Whether the splits of a pass must not be handed out once more, however long nobody reads it."""
    return job.mode == "DYNAMIC" and not core.config.gc_dynamic_sharding_jobs


def _can_drop_job(core: Context, job: Job) -> bool:
    """Whether a job that had no reader for long is dropped."""
    if core.config.job_gc_timeout_ms == -1 and not job.anonymous:
        return False
    half_read = any(not iteration.finished for iteration in job.iterations.values())
    return not (half_read and _keeps_splits(core, job))  # somebody may go on with it
