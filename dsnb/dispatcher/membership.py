"""Workers and clients: who is here, who is lost, and what follows from it."""

from __future__ import annotations

from dsnb.dispatcher import datasets, jobs, leases, reassignment, shards, sharing, slots
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
        served = _whole_passes(core, before)
        known = _welcome(core, event, before)
        for job, iteration in list(core.state.unfinished()):
            if iteration.shards:
                jobs.fill_shards(core, job.name, iteration)
            elif (job.name, iteration.number) in served or reassignment.awaits(core, job, iteration, known):
                continue
            elif not shards.at_work(core, iteration, known):
                jobs.add_task(core, job.name, iteration.number, event.uid)
                core.instruct(e.TellClients(job=job.name, number=iteration.number))
    else:
        _place_again(core, known)
        core.live.to_release.pop(event.uid, None)  # one that was on its way may be lost, and is sent again
        core.live.released.pop(event.uid, None)
        for task in core.state.tasks_of(event.uid):
            if task.task_id not in event.tasks:
                core.instruct(e.StartTask(worker=event.uid, task_id=task.task_id))
            else:  # it may have been paused or resumed meanwhile
                core.instruct(e.TellTask(worker=event.uid, task_id=task.task_id))
        for told in event.grants:
            if (mine := core.state.tasks.get(told.task_id)) is not None and mine.worker == event.uid:
                leases.recall(core, mine, told)
    if known.draining:
        core.instruct(e.TellDrain(worker=event.uid))
    _expect_worker(core, event.uid, core.config.worker_timeout_ms)
    for task_id in event.tasks:
        if task_id not in core.state.tasks or core.state.tasks[task_id].worker != event.uid:
            core.instruct(e.DropTask(worker=event.uid, task_id=task_id))
    for _, iteration in list(core.state.unfinished()):
        reassignment.review(core, iteration)
    return known.name


def place_workers(core: Context) -> None:
    """Give the workers that the journal knows their places in the list that this dispatcher was started with.

    It may be another list than the last one's, or the first. A worker keeps its place where the new list has it for its
    address; one that the list does not have has no place, and is refused when it comes back.
    """
    entries, workers = core.config.worker_addresses or (), core.state.workers.values()
    taken: dict[int, str] = {}
    for worker in workers:
        if 0 <= worker.place < len(entries) and slots.is_place_of(entries[worker.place], worker.address):
            taken[worker.place] = worker.address
    for worker in [worker for worker in workers if entries and taken.get(worker.place) != worker.address]:
        try:
            place = slots.place_of(entries, worker.address, taken)
        except FailedPreconditionError:
            place = -1
        else:
            taken[place] = worker.address
        if place != worker.place:
            core.record(r.WorkerPlaced(uid=worker.uid, place=place))


def _place_again(core: Context, worker: Worker) -> None:
    """Find a place for a worker that comes back without one.

    Raises:
        FailedPreconditionError: the list has none.
    """
    place = _place(core, worker.address)
    if place != worker.place and core.config.worker_addresses:
        core.record(r.WorkerPlaced(uid=worker.uid, place=place))
        for job, iteration in list(core.state.unfinished()):
            if iteration.shards:
                jobs.fill_shards(core, job.name, iteration)


def worker_seen(core: Context, event: e.WorkerSeen) -> None:
    """Take a worker's report in."""
    if event.uid not in core.state.workers:
        raise NotFoundError(f"the worker {event.uid} is unknown", did="it was counted as lost", hint="register again")
    _expect_worker(core, event.uid, core.config.worker_timeout_ms)
    core.live.released[event.uid] = event.released
    for task_id, progress in event.progress.items():
        task = core.state.tasks.get(task_id)
        if task is not None and task.worker == event.uid and task.incarnation == progress.incarnation:
            _progressed(core, task, progress)
    # A client that left while the worker could not be told: what it held is for others.
    for client_id in event.clients - core.state.clients.keys():
        jobs.release(core, event.uid, client_id, died=True)
    for task_id in event.partial:
        sharing.close(core, task_id)
    for task_id in event.ended:
        task = core.state.tasks.get(task_id)
        if task is not None and task.worker == event.uid:  # else it was handed over since
            jobs.end_task(core, task_id)


def _progressed(core: Context, task: Task, progress: e.Progress) -> None:
    before = core.live.progress.get(task.task_id)
    core.live.progress[task.task_id] = progress
    index = progress.resume.index if progress.resume is not None else 0
    behind = {trainer.trainer_id for trainer in progress.trainers if trainer.offset >= index > 0}
    news = behind - {trainer.trainer_id for trainer in task.known if trainer.offset >= index}
    if news or (task.done, task.resume) != (progress.done, progress.resume):
        core.record(
            r.TaskProgressed(
                task_id=task.task_id, done=progress.done, resume=progress.resume, trainers=tuple(sorted(behind))
            )
        )
    again = progress.repeated - (before.repeated if before and before.incarnation == progress.incarnation else 0)
    if again > 0:
        reassignment.announce_again(core, task.job, again)
    if progress.short_by and not (before and before.short_by):
        name = core.state.worker_name(task)
        text = (
            f"worker {name} took a part of job {task.job!r} over, and its pipeline made {progress.short_by:,} elements "
            "fewer than before: it does not repeat itself, so elements may have come twice or not at all"
        )
        core.instruct(e.Announce(level="warning", text=text))


def worker_broken(core: Context, event: e.WorkerBroken) -> None:
    """A worker's connection broke: it has a moment to come back."""
    if event.uid in core.state.workers:
        _expect_worker(core, event.uid, core.config.reconnect_ms)


def worker_drains(core: Context, event: e.WorkerDrains) -> None:
    """A worker gets no more tasks and splits; what it has it finishes."""
    worker = core.state.workers.get(event.uid)
    if worker is not None and not worker.draining:
        core.record(r.WorkerDraining(uid=event.uid))
        for task in core.state.tasks_of(event.uid):
            if _never_began(core, task):
                jobs.leave_to_others(core, task)  # its readers need not wait for an end


def worker_leaves(core: Context, event: e.WorkerLeaves) -> None:
    """A worker says goodbye, or died; there is no need to wait for a silent one then."""
    worker = core.state.workers.get(event.uid)
    if worker is not None and event.death:
        lose_worker(core, worker, f"died: {event.death}", died=True)
    elif worker is not None:
        lose_worker(core, worker, "was stopped")


def _never_began(core: Context, task: Task) -> bool:
    iteration = core.state.iteration(task.job, task.number)
    return bool(iteration.providers) and not task.ended and not task.given and iteration.rounds is None


def _dynamic(core: Context, task: Task) -> bool:
    return core.state.jobs[task.job].mode == "DYNAMIC"


def _whole_passes(core: Context, worker: Worker | None) -> set[tuple[str, int]]:
    """Where a worker's readers have had all of a pass: one that takes its place must not produce it again."""
    tasks = core.state.tasks_of(worker.uid) if worker else []
    return {(task.job, task.number) for task in tasks if task.ended and not _dynamic(core, task)}


def _welcome(core: Context, event: e.WorkerArrives, before: Worker | None) -> Worker:
    """A new worker; one at the address of another that is thought to be there is that one, started again."""
    place = _place(core, event.address)
    name = before.name if before else event.name or f"w{core.number('worker')}"
    core.record(
        r.WorkerJoined(
            uid=event.uid, name=name, address=event.address, isolation=event.isolation, pid=event.pid, place=place
        )
    )
    if before is not None:
        for task in core.state.tasks_of(before.uid):
            _restart(core, task, before)
        core.record(r.WorkerLeft(uid=before.uid))
        core.live.forget_worker(before.uid)
    core.instruct(e.Announce(level="info", text=f"worker {name} {'came back' if before else 'joined'}"))
    return core.state.workers[event.uid]


def _place(core: Context, address: str) -> int:
    """A worker's place in the fixed list, if there is one."""
    entries = core.config.worker_addresses
    taken = {worker.place: worker.address for worker in core.state.workers.values() if worker.place >= 0}
    return slots.place_of(entries, address, taken) if entries else -1


def _restart(core: Context, task: Task, before: Worker) -> None:
    if task.ended:
        jobs.drop_task(core, task.task_id)
        core.instruct(e.TellClients(job=task.job, number=task.number))
    elif core.state.jobs[task.job].consumers:  # it begins anew, so to consumers it is another one
        _drop_rounds(core, task, before, "was started again")
    else:
        reassignment.halt(core, task, before.name, "was started again", died=True)


def lose_worker(core: Context, worker: Worker, reason: str, *, died: bool = False) -> None:
    """Do without a worker: its tasks go on elsewhere, or what they would have made is counted and told.

    It `died`, or left by somebody's will.
    """
    core.live.forget_worker(worker.uid)
    core.live.left.append((worker.name, worker.address, worker.uid))
    tasks = core.state.tasks_of(worker.uid)
    core.instruct(e.Announce(level="warning" if died else "info", text=f"worker {worker.name} {reason}"))
    for task in tasks:
        iteration = core.state.iteration(task.job, task.number)
        if task.ended:
            jobs.drop_task(core, task.task_id)
            jobs.finish_if_over(core, task.job, iteration)
            core.instruct(e.TellClients(job=task.job, number=task.number))
        elif core.state.jobs[task.job].consumers:
            _drop_rounds(core, task, worker, reason)
    left = [task for task in tasks if task.task_id in core.state.tasks]
    for task in left:
        reassignment.halt(core, task, worker.name, reason, died=died)
    core.record(r.WorkerLeft(uid=worker.uid))
    for job, number in dict.fromkeys((task.job, task.number) for task in left):
        reassignment.review(core, core.state.iteration(job, number))


def _drop_rounds(core: Context, task: Task, worker: Worker, reason: str) -> None:
    """A task of a coordinated read is gone; what it had given to all consumers is still theirs (see `rounds`)."""
    record = r.TaskLost(task_id=task.task_id, worker=worker.name, splits=0, reason=reason)
    core.record(record)
    core.instruct(e.TellLoss(job=task.job, number=task.number, loss=record))
    jobs.drop_task(core, task.task_id)
    core.instruct(e.TellClients(job=task.job, number=task.number))


def _expect_worker(core: Context, uid: str, within_ms: int) -> None:
    core.live.workers[uid] = core.now + within_ms / 1000


# ---- clients


def client_seen(core: Context, event: e.ClientSeen) -> None:
    """A client gave a sign of life."""
    if event.client_id not in core.state.clients:
        raise jobs.unknown_client(event.client_id)
    core.live.broken.discard(event.client_id)
    core.live.clients[event.client_id] = core.now + core.config.client_timeout_ms / 1000


def client_broken(core: Context, event: e.ClientBroken) -> None:
    """A client's connection broke: it has a moment to come back."""
    if event.client_id in core.state.clients:
        core.live.clients[event.client_id] = core.now + core.config.reconnect_ms / 1000
        core.live.broken.add(event.client_id)


def client_leaves(core: Context, event: e.ClientLeaves) -> None:
    """A client is done; with the last one a pass waits to be collected, an anonymous job goes at once."""
    client = core.state.clients.get(event.client_id)
    if client is None:
        return
    if client.cancelled:
        core.record(r.ClientLeft(client_id=client.client_id))
        core.live.forget_client(client.client_id)
        return
    job = core.state.jobs[client.job]
    iteration = job.iterations[client.number]
    jobs.let_go(core, client, event.holdings, died=event.died)
    if not iteration.finished:
        reassignment.count_dropped(core, job.name, iteration, client.trainer_id, event.holdings)
    sharing.finish_if_all_ended(core, job.name, iteration)
    if iteration.clients:
        return
    core.live.unread[job.name, iteration.number] = core.now
    if iteration.orphaned and not iteration.finished:
        text = (
            f"the last reader of pass {iteration.number} of job {job.name!r} was lost: what it had not consumed waits "
            f"for another reader for {_kept_s(core):g} seconds"
        )
        core.instruct(e.Announce(level="warning", text=text))
    if not job.clients:
        core.live.unused[job.name] = core.now
        if job.anonymous and not iteration.orphaned:
            jobs.drop_job(core, job)


def _kept_s(core: Context) -> float:
    """How long a job without readers is kept; those without a name are kept for a while at most."""
    return (600_000 if core.config.job_gc_timeout_ms == -1 else core.config.job_gc_timeout_ms) / 1000


# ---- time


def tick(core: Context, _event: e.Tick) -> None:
    """Look at all deadlines."""
    interval = core.config.job_gc_check_interval_ms / 1000
    late = core.now - core.live.ticked - 2 * interval
    core.live.ticked = core.now
    if late > 0:
        core.live.postpone(late)
    for uid in [uid for uid, until in core.live.workers.items() if until < core.now]:
        lose_worker(core, core.state.workers[uid], "was lost", died=True)
    for client in [client for client, until in core.live.clients.items() if until < core.now]:
        client_leaves(core, e.ClientLeaves(client_id=client, died=True))
    _collect(core)


def _collect(core: Context) -> None:
    """Free passes that nobody has read for a while, and then the records of their jobs."""
    for (name, number), since in list(core.live.unread.items()):
        job = core.state.jobs.get(name)
        iteration = job.iterations.get(number) if job else None
        if job is None or iteration is None:
            core.live.unread.pop((name, number), None)
            continue
        age_ms = 1000 * (core.now - since)
        if iteration.finished:
            jobs.drop_iteration(core, job, iteration)
        elif age_ms >= core.config.task_gc_timeout_ms and not _keeps_splits(core, job):
            if iteration.orphaned and age_ms < 1000 * _kept_s(core):
                if reassignment.park(core, iteration):
                    del core.live.unread[name, number]
                else:  # its workers keep what was not consumed
                    reassignment.free_leaving(core, iteration)
            elif job.anonymous and not job.clients:  # nobody else can come for it
                jobs.drop_job(core, job)
            else:
                jobs.drop_iteration(core, job, iteration)
    for name, since in list(core.live.unused.items()):
        job = core.state.jobs.get(name)
        if job is None:
            del core.live.unused[name]
        elif core.now - since >= _kept_s(core) and _may_go(core, job):
            jobs.drop_job(core, job)
    _archive(core)
    datasets.drop_unused(core)


def _archive(core: Context) -> None:
    """Keep the newest jobs that nobody reads whole; of older ones, only that their passes are over."""
    there = [job for name in core.live.unused if (job := core.state.jobs[name]).iterations]
    for job in there[: max(0, len(there) - JOBS_KEPT)]:
        jobs.archive(core, job, kept=0)


def _keeps_splits(core: Context, job: Job) -> bool:
    """Whether the splits of a pass must not be handed out once more, however long nobody reads it."""
    return job.mode == "DYNAMIC" and not core.config.gc_dynamic_sharding_jobs


def _may_go(core: Context, job: Job) -> bool:
    """Whether a job that had no reader for long is dropped."""
    if core.config.job_gc_timeout_ms == -1 and not job.anonymous:
        return False
    half_read = any(not iteration.finished for iteration in job.iterations.values())
    return not (half_read and _keeps_splits(core, job))  # somebody may go on with it
