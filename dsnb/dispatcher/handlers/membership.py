"""Workers and clients: how they join, report, disconnect and leave, their deadlines, and garbage collection."""

from __future__ import annotations

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.coverage import count_of
from dsnb.dispatcher.handlers import (
    cached_iterations,
    datasets,
    jobs,
    reassignment,
    rounds,
    shards,
    splits,
    static_index,
)
from dsnb.dispatcher.split_ranges import trainer_position
from dsnb.dispatcher.state import Iteration, Job, Task, Worker
from dsnb.errors import FailedPreconditionError, NotFoundError
from dsnb.wire.field_groups import ReaderCount, WorkerIdentity, shared
from dsnb.wire.messages import (
    ClientReport,
    Loss,
    TaskHolding,
    TaskReport,
    TrainerPosition,
    TrainerReport,
    WorkerReport,
)
from dsnb.wire.ranges import Ranges

JOBS_KEPT = 100
"""How many jobs without a client are kept in full."""
_LATE_REPORT_S = 3.0
"""A report shows that a worker runs only if it comes at least this long after a client said that it cannot reach the
worker. If the dispatcher was suspended, the worker may have sent an earlier one and died since."""

# ---- workers


def worker_arrives(core: Context, event: e.WorkerArrives) -> str:
    """Add a worker, or handle its reconnection, and send its tasks; returns the worker's name.

    Raises:
        FailedPreconditionError: `worker_addresses` has no free entry for the worker.
    """
    report = event.report
    known = core.state.workers.get(report.uid)
    if known is None:
        known = _join(core, report)
    else:
        _reconnect(core, known, report)
    # Releases that were on their way may be lost. `worker_reported` sends them again, with higher numbers than the
    # worker has confirmed so far.
    core.transient.sent_releases[report.uid] = core.transient.confirmed_releases[report.uid] = report.last_release
    if known.draining:
        core.instruct(e.SendDrainOrder(worker=report.uid))
    _set_worker_deadline(core, report.uid, core.config.worker_timeout_ms)
    for reported in report.tasks:
        task = core.state.tasks.get(reported.task_id)
        if task is None or task.worker != report.uid:
            core.instruct(e.DropTask(worker=report.uid, task_id=reported.task_id, incarnation=reported.incarnation))
    for _, iteration in list(core.state.unfinished_iterations()):
        reassignment.retry_unassigned(core, iteration)
    return known.name


def _join(core: Context, report: WorkerReport) -> Worker:
    """Add a worker, and give it a task of each iteration that it can help with."""
    before = next((w for w in core.state.workers.values() if w.address == report.address), None)
    served = _fully_read_iterations(core, before)  # before `_add_worker` drops the old process's ended tasks
    added = _add_worker(core, report, before)
    for job, iteration in list(core.state.unfinished_iterations()) if added.available else ():
        _offer_task(core, job, iteration, added, served=(job.name, iteration.number) in served)
    return added


def _offer_task(core: Context, job: Job, iteration: Iteration, worker: Worker, *, served: bool = False) -> None:
    """Give an available worker a task of an unfinished iteration, if the worker can help with it.

    `served` says that it is the successor of a worker whose elements were all consumed.
    """
    if iteration.rounds is not None and iteration.rounds.end_round is not None:
        return  # the last rounds are planned
    rounds.begin_waiting_tasks(core, job.name, iteration)
    if iteration.shards:
        jobs.fill_shards(core, job.name, iteration)
    elif served or reassignment.waits_for_worker(core, job, iteration, worker):
        return
    elif not shards.has_task(core, iteration, worker):
        jobs.add_task(core, job.name, iteration.number, worker.uid)
        core.instruct(e.NotifyClients(job=job.name, iteration=iteration.number))


def _reconnect(core: Context, worker: Worker, report: WorkerReport) -> None:
    """Bring a worker up to date that kept its state while it was disconnected."""
    _update_static_index(core, worker)
    reported = {(task.task_id, task.incarnation): task for task in report.tasks}
    newest = {task.task_id: task.incarnation for task in report.tasks}
    for task in core.state.tasks_of(report.uid):
        # A report of an earlier incarnation says nothing about the splits of this one, which has yet to begin.
        known = reported.get((task.task_id, task.incarnation))
        if known is None:
            if (later := newest.get(task.task_id, 0)) > task.incarnation:
                # A power failure took the end of the journal. The worker would take the order for one that comes late.
                core.instruct(e.DropTask(worker=report.uid, task_id=task.task_id, incarnation=later))
            core.instruct(e.StartTask(worker=report.uid, task_id=task.task_id))
        else:  # the job may have been paused or resumed while the worker was disconnected
            core.instruct(e.UpdateTask(worker=report.uid, task_id=task.task_id))
            for grant in known.grants:
                splits.restore_grant(core, task, grant)


def assign_static_indices(core: Context) -> None:
    """Assign static indices to the workers restored from the journal, by the current `worker_addresses`.

    The list may differ from that of the previous start. A worker keeps its index if that entry of the new list matches
    its address. A worker without a matching entry gets index -1, and is refused when it reconnects.
    """
    entries, workers = core.config.worker_addresses or (), core.state.workers.values()
    taken: dict[int, str] = {}
    for worker in workers:
        if 0 <= worker.static_index < len(entries) and static_index.matches_entry(
            entries[worker.static_index], worker.address
        ):
            taken[worker.static_index] = worker.address
    for worker in [worker for worker in workers if entries and taken.get(worker.static_index) != worker.address]:
        try:
            index = static_index.static_index(entries, worker.address, taken)
        except FailedPreconditionError:
            index = -1
        else:
            taken[index] = worker.address
        if index != worker.static_index:
            core.record(r.StaticIndexAssigned(uid=worker.uid, static_index=index))


def _update_static_index(core: Context, worker: Worker) -> None:
    """Assign a static index to a worker that reconnects without one.

    Raises:
        FailedPreconditionError: the list has no free entry for it.
    """
    index = _find_static_index(core, worker.address)
    if index != worker.static_index and core.config.worker_addresses:
        core.record(r.StaticIndexAssigned(uid=worker.uid, static_index=index))
        for job, iteration in list(core.state.unfinished_iterations()):
            if iteration.shards:
                jobs.fill_shards(core, job.name, iteration)


def worker_reported(core: Context, report: WorkerReport) -> None:
    """Handle a worker's report.

    Raises:
        NotFoundError: the worker was counted as lost.
    """
    if report.uid not in core.state.workers:
        raise NotFoundError(f"the worker {report.uid} is unknown", did="it was counted as lost", hint="register again")
    _set_worker_deadline(core, report.uid, core.config.worker_timeout_ms)
    core.transient.confirmed_releases[report.uid] = report.last_release
    _tell_that_it_runs(core, report.uid)
    for progress in report.tasks:
        task = core.state.tasks.get(progress.task_id)
        if task is not None and task.worker == report.uid and task.incarnation == progress.incarnation:
            _update_progress(core, task, progress)
            rounds.task_reported(core, task, progress)
    # The worker still serves clients that left while it was disconnected: release them, so that others get their
    # elements.
    served = dict.fromkeys(client_id for task in report.tasks for client_id in task.clients)
    for client_id in served:
        if client_id not in core.state.clients:
            jobs.release_client(core, report.uid, client_id, died=True)
    for task_report in report.tasks:
        if task_report.closing:
            cached_iterations.close_on_request(core, report.uid, task_report)
    _end_tasks(core, report)


def _tell_that_it_runs(core: Context, uid: str) -> None:
    """Notify the clients that cannot reach a worker although it runs: it keeps its tasks."""
    for client_id, since in core.transient.unreachable_workers.items():
        if core.now - since.get(uid, core.now) > _LATE_REPORT_S:
            core.instruct(e.NotifyRunning(client_id=client_id, worker=uid))


def _end_tasks(core: Context, report: WorkerReport) -> None:
    incarnations = {progress.task_id: progress.incarnation for progress in report.tasks}
    for task_id in report.ended:
        task = core.state.tasks.get(task_id)
        if task is None or task.worker != report.uid:
            continue  # the task has been reassigned
        # A worker that was counted as lost may get its task back. What it then says of the earlier incarnation must not
        # end this one: clients hold elements that count as consumed there, and may be lost before they consume them.
        if incarnations.get(task_id, task.incarnation) == task.incarnation:
            jobs.end_task(core, task_id)


def _update_progress(core: Context, task: Task, progress: TaskReport) -> None:
    before = core.transient.progress.get(task.task_id)
    core.transient.progress[task.task_id] = progress
    index = progress.resume_position.index if progress.resume_position is not None else 0
    past = {trainer.trainer_id: trainer for trainer in progress.trainers if trainer.offset >= index > 0}
    # A trainer that passes the resume position is news even where the position itself has not changed.
    news = past.keys() - task.trainers_past_resume
    if news or (task.splits_done, task.resume_position) != (progress.splits_done, progress.resume_position):
        core.record(
            r.TaskProgressed(
                task_id=task.task_id,
                splits_done=progress.splits_done,
                resume_position=progress.resume_position,
                trainers=tuple(_consumed_before(index, trainer) for _, trainer in sorted(past.items())),
            )
        )
    again = progress.repeated - (before.repeated if before and before.incarnation == progress.incarnation else 0)
    if again > 0:
        reassignment.announce_repeated(core, task.job, again)
    if progress.missing_elements and not (before and before.missing_elements):
        name = core.state.worker_name(task)
        text = (
            f"worker {name} took a part of job {task.job!r} over, and its pipeline made "
            f"{progress.missing_elements:,} elements fewer than before: it does not repeat itself, so elements may "
            "have come twice or not at all"
        )
        core.instruct(e.Announce(level="warning", text=text))


def _consumed_before(index: int, trainer: TrainerReport) -> TrainerPosition:
    """What a trainer consumed of the elements before an index."""
    consumed = Ranges((part.first, part.end) for part in trainer.consumed_ranges)
    return trainer_position(trainer.trainer_id, Ranges(consumed.within(0, index)))


def worker_disconnected(core: Context, event: e.WorkerDisconnected) -> None:
    """Give a worker whose connection broke `reconnect_ms` to return."""
    if event.uid in core.state.workers:
        _set_worker_deadline(core, event.uid, core.config.reconnect_ms)


def worker_drains(core: Context, event: e.WorkerDrains) -> None:
    """Give a worker no more tasks and splits; it finishes those that it has."""
    worker = core.state.workers.get(event.uid)
    if worker is not None and not worker.draining:
        core.record(r.WorkerDraining(uid=event.uid))
        _drop_idle_tasks(core, event.uid)
        for job, iteration in list(core.state.unfinished_iterations()):
            rounds.begin_waiting_tasks(core, job.name, iteration)


def _drop_idle_tasks(core: Context, uid: str) -> None:
    """Drop the tasks of a leaving worker that have ended or never began, so that nobody waits for them."""
    for task in core.state.tasks_of(uid):
        if task.ended:
            jobs.drop_ended_task(core, task)
        elif _never_began(core, task):
            jobs.drop_task_early(core, task)  # clients need not wait for the end of an empty task


def hold_new_workers(core: Context, _event: e.HoldNewWorkers) -> None:
    """Give workers that join from now on no work, until they replace others."""
    core.transient.holds_new_workers = True


def release_held_workers(core: Context) -> None:
    """Let workers begin that were held when the dispatcher died: nobody is there any more to say whom they replace."""
    if any(worker.held for worker in core.state.workers.values()):
        replace_workers(core, e.ReplaceWorkers())


def replace_workers(core: Context, event: e.ReplaceWorkers) -> None:
    """Let the workers that were held replace others, in one step: no pass is produced by both, and none by neither.

    What the old workers have begun stays with them, except DYNAMIC tasks: these end after the splits that they hold,
    and the new workers get the rest.
    """
    core.transient.holds_new_workers = False
    new = [worker for worker in core.state.workers.values() if worker.held]
    old = tuple(uid for uid in event.uids if uid in core.state.workers)
    core.record(r.WorkersReplaced(uids=old))
    for job, iteration in list(core.state.unfinished_iterations()):
        rounds.begin_waiting_tasks(core, job.name, iteration)
        if not old or job.shares_splits:
            for worker in new:
                _offer_task(core, job, iteration, worker)
    for uid in old:  # after the offers: an iteration whose last task goes would be finished
        _drop_idle_tasks(core, uid)


def worker_leaves(core: Context, event: e.WorkerLeaves) -> None:
    """Remove a worker that has stopped or, with an exit reason, died; its deadline need not pass first."""
    worker = core.state.workers.get(event.uid)
    if worker is not None and event.exit_reason:
        remove_worker(core, worker, f"died: {event.exit_reason}", died=True)
    elif worker is not None:
        remove_worker(core, worker, "was stopped")


def offer_abandoned_passes(core: Context) -> None:
    """Give passes that lost their last task to the available workers, if it was left to workers that were replaced.

    Other passes have a task on each available worker, so without one they wait for a worker that joins.
    """
    if not any(isinstance(record, r.TaskDropped) for record in core.records):
        return
    for job, iteration in list(core.state.unfinished_iterations()):
        if iteration.workers_replaced and not iteration.tasks:
            for worker in [worker for worker in core.state.workers.values() if worker.available]:
                _offer_task(core, job, iteration, worker)


def _never_began(core: Context, task: Task) -> bool:
    iteration = core.state.iteration(task.job, task.iteration)
    return bool(iteration.providers) and not task.splits_given and iteration.rounds is None


def _dynamic(core: Context, task: Task) -> bool:
    return core.state.jobs[task.job].mode == "DYNAMIC"


def _fully_read_iterations(core: Context, worker: Worker | None) -> set[tuple[str, int]]:
    """The iterations whose elements of this worker were all consumed: its successor must not produce them again."""
    tasks = core.state.tasks_of(worker.uid) if worker else []
    return {(task.job, task.iteration) for task in tasks if task.ended and not _dynamic(core, task)}


def _add_worker(core: Context, report: WorkerReport, before: Worker | None) -> Worker:
    """Add a worker. If `before` had the same address, the new process replaces it and keeps its name."""
    index = _find_static_index(core, report.address)
    name = before.name if before else report.name or f"w{core.next_number('worker')}"
    core.record(
        r.WorkerJoined(
            **{**shared(WorkerIdentity, report), "name": name},
            static_index=index,
            data_port=report.data_port,
            held=core.transient.holds_new_workers,
        )
    )
    if before is not None:
        for task in core.state.tasks_of(before.uid):
            _detach_old_process(core, task, before)
        core.record(r.WorkerLeft(uid=before.uid))
        core.transient.forget_worker(before.uid)
    core.instruct(e.Announce(level="info", text=f"worker {name} {'came back' if before else 'joined'}"))
    return core.state.workers[report.uid]


def _find_static_index(core: Context, address: str) -> int:
    """A worker's index in `worker_addresses`; -1 without such a list."""
    entries = core.config.worker_addresses
    if not entries:
        return -1
    taken = {worker.static_index: worker.address for worker in core.state.workers.values() if worker.static_index >= 0}
    return static_index.static_index(entries, address, taken)


def _detach_old_process(core: Context, task: Task, before: Worker) -> None:
    if task.ended:
        jobs.drop_task(core, task.task_id)
        core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))
    elif core.state.jobs[task.job].num_consumers:  # its rounds begin again at 0, so it cannot be the same task
        _drop_coordinated_task(core, task, before, "was started again")
    else:
        reassignment.unassign(core, task, before.name, "was started again", died=True)


def remove_worker(core: Context, worker: Worker, reason: str, *, died: bool = False) -> None:
    """Remove a worker: its tasks continue on other workers, or the elements that do not arrive are counted.

    `died` is False for a worker that left or was removed on request.
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
    coordinated = [task for task in tasks if core.state.jobs[task.job].num_consumers]
    left = [task for task in tasks if task.task_id in core.state.tasks]
    for task in left:
        reassignment.unassign(core, task, worker.name, reason, died=died)
    core.record(r.WorkerLeft(uid=worker.uid))
    for task in coordinated:
        iteration = core.state.iteration(task.job, task.iteration)
        rounds.begin_waiting_tasks(core, task.job, iteration)
        jobs.fill_shards(core, task.job, iteration)
    for job, number in dict.fromkeys((task.job, task.iteration) for task in left):
        reassignment.retry_unassigned(core, core.state.iteration(job, number))


def _drop_coordinated_task(core: Context, task: Task, worker: Worker, reason: str) -> None:
    """Drop a task of a coordinated read. Rounds that all consumers have received are still taken (see `rounds`)."""
    if rounds.begins_again(core.state.iteration(task.job, task.iteration), task):
        jobs.drop_task(core, task.task_id, begins_again=True)
        core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))
        return
    splits = reassignment.record_lost_splits(core, task, [])
    elements = -1 if splits or not task.splits_given else 0
    loss = Loss(task_id=task.task_id, worker=worker.name, reason=reason, elements=elements, splits=splits)
    core.record(r.TaskLost(loss=loss))
    core.instruct(e.NotifyLoss(job=task.job, iteration=task.iteration, loss=loss))
    jobs.drop_task(core, task.task_id)
    core.instruct(e.NotifyClients(job=task.job, iteration=task.iteration))


def _set_worker_deadline(core: Context, uid: str, within_ms: int) -> None:
    core.transient.worker_deadlines[uid] = core.now + within_ms / 1000


# ---- clients


def client_reported(core: Context, report: ClientReport) -> None:
    """Handle a client's report, and extend its deadline or remove it.

    Raises:
        NotFoundError: the client was counted as lost, or never existed.
    """
    client_id = report.client_id
    if report.consumer is not None:
        rounds.consumer_reported(core, client_id, report.consumer)
    if report.leaving:
        remove_client(core, client_id, report.holdings, count=count_of(report))
        return
    reassignment.holdings_reported(core, client_id, report.holdings)
    if client_id not in core.state.clients:
        raise jobs.unknown_client_error(client_id)
    core.transient.client_counts[client_id] = count_of(report)
    core.transient.disconnected_clients.discard(client_id)
    core.transient.client_deadlines[client_id] = core.now + core.config.client_timeout_ms / 1000
    known = core.transient.unreachable_workers.pop(client_id, {})
    if report.unreachable_workers:
        since = {uid: known.get(uid, core.now) for uid in report.unreachable_workers}
        core.transient.unreachable_workers[client_id] = since


def client_disconnected(core: Context, event: e.ClientDisconnected) -> None:
    """Give a client whose connection broke `reconnect_ms` to return."""
    if event.client_id in core.state.clients:
        core.transient.client_deadlines[event.client_id] = core.now + core.config.reconnect_ms / 1000
        core.transient.disconnected_clients.add(event.client_id)


def remove_client(
    core: Context,
    client_id: str,
    holdings: tuple[TaskHolding, ...] = (),
    *,
    died: bool = False,
    count: ReaderCount | None = None,
) -> None:
    """Remove a client that leaves with these holdings and this count of what it consumed, or that died.

    An iteration without clients is collected later; an anonymous job is dropped at once.
    """
    client = core.state.clients.get(client_id)
    if client is None:
        return
    if client.cancelled_by:
        core.record(r.ClientLeft(client_id=client.client_id))
        core.transient.forget_client(client.client_id)
        return
    job = core.state.jobs[client.job]
    iteration = job.iterations[client.iteration]
    jobs.remove_client(core, client, holdings, died=died, count=count)
    if not iteration.finished:
        reassignment.count_undelivered(core, job.name, iteration, client.trainer_id, holdings)
    cached_iterations.finish_if_all_ended(core, job.name, iteration)
    if iteration.clients:
        return
    if iteration.orphaned and not iteration.finished:
        text = (
            f"pass {iteration.number + 1} of job {job.name!r} has no reader left: what its readers had not consumed "
            f"waits for another one for {_job_gc_timeout_s(core):g} seconds"
        )
        core.instruct(e.Announce(level="warning", text=text))
    if not job.clients:
        core.transient.jobs_unused_since[job.name] = core.now
        if job.anonymous and not iteration.orphaned:
            jobs.drop_job(core, job)


def _job_gc_timeout_s(core: Context) -> float:
    """How long a job without clients is kept; if the setting is -1, this holds for anonymous jobs only."""
    return (600_000 if core.config.job_gc_timeout_ms == -1 else core.config.job_gc_timeout_ms) / 1000


# ---- time


def tick(core: Context, _event: e.Tick) -> None:
    """Check all deadlines, and remove what has expired."""
    core.transient.last_tick = core.now
    for uid in [uid for uid, until in core.transient.worker_deadlines.items() if until < core.now]:
        remove_worker(core, core.state.workers[uid], "was lost", died=True)
    for client in [client for client, until in core.transient.client_deadlines.items() if until < core.now]:
        remove_client(core, client, died=True)
    _collect_garbage(core)


def _collect_garbage(core: Context) -> None:
    """Free iterations that have had no client for their time-out, then drop their jobs."""
    for (name, number), since in list(core.transient.iterations_unread_since.items()):
        job = core.state.jobs.get(name)
        iteration = job.iterations.get(number) if job else None
        if job is None or iteration is None:
            core.transient.iterations_unread_since.pop((name, number), None)
        elif iteration.finished:
            jobs.drop_iteration(core, job, iteration)
        elif 1000 * (core.now - since) >= core.config.task_gc_timeout_ms and not _keeps_splits(core, job):
            _free_unread(core, job, iteration, core.now - since)
    for name, since in list(core.transient.jobs_unused_since.items()):
        job = core.state.jobs.get(name)
        if job is None:
            del core.transient.jobs_unused_since[name]
        elif core.now - since >= _job_gc_timeout_s(core) and _can_drop_job(core, job):
            jobs.drop_job(core, job)
    _archive(core)
    datasets.drop_unused(core)


def _free_unread(core: Context, job: Job, iteration: Iteration, age_s: float) -> None:
    """Free the tasks of an unfinished iteration that has had no client for `age_s` seconds, or all of it."""
    if iteration.orphaned and age_s < _job_gc_timeout_s(core):
        if iteration.rounds is not None:
            return  # the workers keep the rounds: no other worker can continue their tasks
        if reassignment.suspend(core, iteration):
            del core.transient.iterations_unread_since[job.name, iteration.number]
        else:  # the tasks cannot be suspended: the workers keep the elements that were not consumed
            reassignment.hand_over_from_draining(core, iteration)
    elif job.anonymous and not job.clients:  # no other client can join an anonymous job
        jobs.drop_job(core, job)
    else:
        jobs.drop_iteration(core, job, iteration)


def _archive(core: Context) -> None:
    """Keep the newest jobs without clients in full; archive the finished iterations of older ones."""
    there = [job for name in core.transient.jobs_unused_since if (job := core.state.jobs[name]).iterations]
    for job in there[: max(0, len(there) - JOBS_KEPT)]:
        jobs.archive_iterations(core, job, kept=0)


def _keeps_splits(core: Context, job: Job) -> bool:
    """Whether a job's iterations are kept without clients, so that no split is ever assigned a second time."""
    return job.mode == "DYNAMIC" and not core.config.gc_dynamic_sharding_jobs


def _can_drop_job(core: Context, job: Job) -> bool:
    """Whether a job that has had no client for its time-out can be dropped."""
    if core.config.job_gc_timeout_ms == -1 and not job.anonymous:
        return False
    half_read = any(not iteration.finished for iteration in job.iterations.values())
    return not (half_read and _keeps_splits(core, job))  # a client may still join for the rest
