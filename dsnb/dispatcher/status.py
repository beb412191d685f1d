"""Builds the snapshot of a service from its state, statistics and split history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy

from msgspec.structs import asdict, replace

from dsnb.dispatcher.context import ConsumerState
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.handlers.membership import JOBS_KEPT
from dsnb.dispatcher.handlers.reassignment import guarantee
from dsnb.dispatcher.handlers.receipts import receipt
from dsnb.dispatcher.handlers.rounds import consumer_states, waits_for
from dsnb.dispatcher.round_state import Rounds
from dsnb.dispatcher.split_history import SplitHistory
from dsnb.dispatcher.state import BEGUN, Iteration, Job, Worker
from dsnb.dispatcher.statistics import JobTotals, Statistics, TrainerTotals, WorkerTotals, stages_of
from dsnb.dispatcher.worker_pool import WorkerPool
from dsnb.monitor.snapshot import (
    VERSION,
    AutoscaleStatus,
    ConsumerStatus,
    CursorStatus,
    EventStatus,
    HostStatus,
    JobStatus,
    OlderJobs,
    RoundsStatus,
    ShardStatus,
    Snapshot,
    SplitStatus,
    TaskStatus,
    TrainerStatus,
    WorkerStatus,
)
from dsnb.wire.field_groups import JobParameters, TaskProgress, WorkerIdentity, WorkerUse, shared
from dsnb.wire.messages import ClientReport, HostUse, LinkReport, TaskReport, TrainerReport, WorkerReport


def snapshot(
    core: Core,
    statistics: Statistics,
    events: Iterable[EventStatus],
    worker_pool: WorkerPool | None = None,
    split_history: SplitHistory | None = None,
    autoscale: AutoscaleStatus | None = None,
    *,
    seq: int,
    time: float,
    service: str,
    target: str,
    started: float,
    network: str = "loopback",
) -> Snapshot:
    """The current snapshot of a service; the arguments after `*` are copied to the fields of the same name."""
    workers = core.state.workers.values()
    freed = _jobs_without_iterations(core, statistics)
    shown = {job.name for job in freed[-JOBS_KEPT:]}
    jobs = [job for job in core.state.jobs.values() if job.iterations or job.name in shown]
    one_host = _is_on_one_host(statistics, jobs)
    tasks_by_worker = Counter(task.worker for task in core.state.tasks.values())
    return Snapshot(
        version=VERSION,
        seq=seq,
        time=time,
        service=service,
        target=target,
        started=started,
        network=network,
        workers=tuple(
            _worker(
                core,
                worker,
                tasks_by_worker[worker.uid],
                statistics.workers.get(worker.uid),
                statistics.worker_totals(worker.uid),
                worker_pool.stderr_of(worker.uid) if worker_pool is not None else (),
            )
            for worker in workers
        ),
        jobs=tuple(_job(core, job, statistics.job(job.name), split_history, one_host=one_host) for job in jobs),
        events=tuple(events),
        scalable=worker_pool is not None,
        launcher=worker_pool.launcher_name if worker_pool is not None else "",
        autoscale=autoscale,
        older=_older(core, statistics, freed[:-JOBS_KEPT]),
        hosts=_hosts(statistics.workers[worker.uid] for worker in workers if worker.uid in statistics.workers),
    )


def _is_on_one_host(statistics: Statistics, jobs: Iterable[Job]) -> bool:
    """Whether all workers and clients are on one host, so that its name tells nothing."""
    of_clients = {origin.host for job in jobs for origin in statistics.job(job.name).origins()}
    return len(of_clients | {report.host for report in statistics.workers.values()}) < 2


def _hosts(reports: Iterable[WorkerReport]) -> tuple[HostStatus, ...]:
    """The hosts in the order of their first workers. Workers of one host say the same, so any report will do."""
    found = {report.host_id: report for report in reports if report.host_use is not None and report.host_id}
    return tuple(
        HostStatus(name=report.host, host_id=host_id, **shared(HostUse, report.host_use))
        for host_id, report in found.items()
    )


def _jobs_without_iterations(core: Core, statistics: Statistics) -> list[Job]:
    """The jobs whose readers left before the end, and whose iteration was freed since; the newest last."""
    jobs = [core.state.jobs[name] for name in core.transient.jobs_unused_since]
    return [job for job in jobs if not job.iterations and not job.archived and statistics.was_read(job.name)]


def _older(core: Core, statistics: Statistics, freed: Iterable[Job]) -> OlderJobs:
    """The sums over archived jobs, and over those `freed` ones that are not listed."""
    counted = [*(job for job in core.state.jobs.values() if job.archived), *freed]
    sums = [statistics.archived_totals(job.name) for job in counted]
    return OlderJobs(
        jobs=len(counted),
        produced=sum(one.produced for one in sums),
        consumed=sum(one.consumed for one in sums),
        lost_splits=sum(job.archived_lost_splits for job in counted),
    )


def _worker(
    core: Core,
    worker: Worker,
    tasks_assigned: int,
    report: WorkerReport | None,
    totals: WorkerTotals,
    stderr: tuple[str, ...],
) -> WorkerStatus:
    report = report or WorkerReport()
    silent_since = core.transient.worker_deadlines[worker.uid] - core.config.worker_timeout_ms / 1000
    return WorkerStatus(
        **shared(WorkerUse, report) | shared(WorkerIdentity, worker),  # the name that it got, not the one it asked for
        state="draining" if worker.leaving else "running",
        tasks=tasks_assigned,
        **asdict(totals),
        cache_bytes=sum(task.window_bytes for task in report.tasks),
        readers=sum(task.readers for task in report.tasks),
        heartbeat_age_s=max(0.0, core.now - silent_since),
        stderr=stderr,
    )


def _job(core: Core, job: Job, totals: JobTotals, split_history: SplitHistory | None, *, one_host: bool) -> JobStatus:
    newest = job.iterations[max(job.iterations)] if job.iterations else Iteration(max(0, job.newest))
    tasks = core.state.tasks
    worker_names = {task_id: core.state.worker_name(tasks[task_id]) for task_id in totals.tasks if task_id in tasks}
    clients = _clients_by_trainer(totals)
    reported = _reported_by_trainer(totals, worker_names)
    trainers = tuple(
        _trainer(job, totals, trainer_id, clients.get(trainer_id, ()), reported, one_host=one_host)
        for trainer_id in totals.trainer_ids()
    )
    promised, why = guarantee(core, job)
    return JobStatus(
        name=job.name,
        anonymous=job.anonymous,
        dataset_id=job.dataset_id,
        pipeline=core.state.datasets[job.dataset_id].info.pipeline,
        **shared(JobParameters, job),
        iteration=newest.number,
        state="finished" if newest.finished else "paused" if job.paused_by else "running" if job.clients else "idle",
        clients=len(job.clients),
        produced=totals.all_produced(),
        consumed=totals.unlisted_consumed + sum(trainer.elements for trainer in trainers),
        lost_splits=job.archived_lost_splits
        + sum(p.lost for iteration in job.iterations.values() for p in iteration.providers),
        tasks=tuple(_task(core, task, totals.tasks.get(task)) for i in job.iterations.values() for task in i.tasks),
        trainers=trainers,
        splits=_splits(core, newest),
        shards=_shards(core, newest),
        paused_by=job.paused_by,
        grants=split_history.grants_of(job.name) if split_history is not None else (),
        rounds=_rounds(core, job, newest),
        links=tuple(_links(totals, worker_names)),
        stages=tuple(stages_of(totals)),
        guarantee=promised,
        guarantee_reason=why,
        receipt=_receipt(core, job, newest),
    )


def _receipt(core: Core, job: Job, newest: Iteration) -> str:
    """The receipt of a job's newest epoch that is over, in one line; empty if there is none."""
    for number in (newest.number, newest.number - 1):
        iteration = job.iterations.get(number)
        if number in job.receipts or (iteration is not None and iteration.finished):
            if iteration is None or not iteration.clients:  # else its readers have yet to say what they consumed
                return receipt(core, job, number).summary
    return ""


def _task(core: Core, task_id: str, report: TaskReport | None) -> TaskStatus:
    task = core.state.tasks[task_id]
    report = report or TaskReport(task_id=task_id, state="pending")
    return TaskStatus(
        task_id=task_id,
        worker=core.state.worker_name(task),
        iteration=task.iteration,
        incarnation=task.incarnation,
        state="ended" if task.ended else "halted" if task.unassignment is not None else report.state,
        **shared(TaskProgress, report),
    )


_Reported = tuple[list[TrainerReport], list[CursorStatus]]
"""What a job's tasks report about one trainer, and the trainer's cursors."""


def _reported_by_trainer(totals: JobTotals, worker_names: Mapping[str, str]) -> Mapping[str | None, _Reported]:
    found: defaultdict[str | None, _Reported] = defaultdict(lambda: ([], []))
    for task in totals.tasks.values():
        task_id, head, worker = task.task_id, task.head, worker_names.get(task.task_id)
        for trainer in task.trainers:
            reports, cursors = found[trainer.trainer_id]
            reports.append(trainer)
            if worker:
                offset, flight = trainer.offset, trainer.in_flight_ns
                lag = head - offset if head > offset else 0
                cursors.append(
                    CursorStatus(task_id=task_id, worker=worker, offset=offset, lag=lag, in_flight_ns=flight)
                )
    return found


def _clients_by_trainer(totals: JobTotals) -> Mapping[str, list[ClientReport]]:
    found: defaultdict[str, list[ClientReport]] = defaultdict(list)
    for trainer_id, report in totals.clients.values():
        found[trainer_id].append(report)
    return found


def _trainer(
    job: Job,
    totals: JobTotals,
    trainer_id: str,
    clients: Sequence[ClientReport],
    reported: Mapping[str | None, _Reported],
    *,
    one_host: bool,
) -> TrainerStatus:
    # Without the cache, workers report one shared cursor for all clients of a task, under the empty trainer id. It is
    # shown for a client only if that is the job's only client.
    reported_id = trainer_id if job.cached or job.num_consumers else "" if len(totals.clients) == 1 else None
    here, cursors = reported.get(reported_id, ([], []))
    whole = copy(totals.trainers.get(trainer_id, TrainerTotals()))
    for client in clients:
        whole.add_client(client)
    if job.cached:
        whole.add_cache_counters(here)
    if whole.origin is not None and one_host:
        whole.origin = replace(whole.origin, host="")
    return TrainerStatus(
        trainer_id=trainer_id,
        clients=len(clients),
        **asdict(whole),
        lag_bytes=sum([t.lag_bytes for t in here]),
        on_lag=next((t.on_lag for t in here if t.on_lag), ""),
        rate=sum([t.rate for t in here]),
        eviction_in_s=min([t.eviction_in_s for t in here if t.eviction_in_s], default=0.0),
        evicted_by=totals.evictions.get(trainer_id, ""),
        cursors=tuple(cursors),
    )


def _links(totals: JobTotals, worker_names: Mapping[str, str]) -> Iterator[LinkReport]:
    for task in totals.tasks.values():
        if worker := worker_names.get(task.task_id):
            for link in task.links:
                yield replace(link, task_id=task.task_id, worker=worker)


def _shards(core: Core, iteration: Iteration) -> tuple[ShardStatus, ...]:
    tasks = {task.shard: task for task in map(core.state.tasks.__getitem__, iteration.tasks)}
    rows = []
    for shard, state in enumerate(iteration.shards):
        task = tasks.get(shard)
        worker = core.state.worker_name(task) if task is not None and task.unassignment is None else ""
        shown = ("running" if worker else "lost") if state == BEGUN else state
        rows.append(ShardStatus(shard=shard, state=shown, worker=worker))
    return tuple(rows)


def _rounds(core: Core, job: Job, iteration: Iteration) -> RoundsStatus | None:
    rounds = iteration.rounds
    if rounds is None:
        return None
    states = consumer_states(core, job.name, iteration)
    tasks = [core.state.tasks[task] for task in iteration.tasks]
    return RoundsStatus(
        round=min(state.round for state in states),
        workers=tuple(core.state.worker_name(task) for task in tasks),
        consumers=tuple(
            ConsumerStatus(
                index=index,
                client_id=standing.client_id,
                state=_consumer_state(rounds, standing, index),
                round=standing.round,
                last_change_age_s=max(0.0, core.now - standing.changed_at),
            )
            for index, standing in enumerate(states)
        ),
        halted=rounds.halted,
        dropped=rounds.dropped,
        waits_for=waits_for(core, job, iteration),
    )


def _consumer_state(rounds: Rounds, standing: ConsumerState, index: int) -> str:
    if index in rounds.ended_consumers:
        return "ended"
    return "absent" if not standing.client_id else "reading" if standing.begun else "joining"


def _splits(core: Core, iteration: Iteration) -> tuple[SplitStatus, ...]:
    rows = []
    for number, provider in enumerate(iteration.providers):
        in_hand = 0
        for task_id in iteration.tasks:
            task = core.state.tasks[task_id]
            given, done = task.splits_given.get(number, 0), task.splits_done
            in_hand += max(0, given - (done[number] if number < len(done) else 0))
        # Until a split of a new repetition is granted, show the previous one: its last splits are still in progress.
        over = provider.next == 0 and provider.repetition > 0
        repetition = provider.repetition - 1 if over else provider.repetition
        given_now = provider.count if over else provider.next
        if iteration.finished:
            in_hand = 0
        # Losses are added up over all repetitions; only in the first one is it certain that they belong to it.
        lost_now = provider.lost if repetition == 0 else 0
        rows.append(
            SplitStatus(
                source=provider.source,
                repetition=repetition,
                total=provider.count,
                done=max(0, given_now - in_hand - lost_now),
                in_hand=min(in_hand, provider.count),
                lost=provider.lost,
            )
        )
    return tuple(rows)
