"""Static sharding: which worker produces which shard of an iteration.

The number of shards is fixed when an iteration begins: the length of `worker_addresses`, or, without that list, the
number of workers that have joined and do not drain. A shard whose worker is lost begins again with the next worker that
has no shard: with a list the worker with the shard's index, without one any worker. A shard that was produced to its
end is never produced again.
"""

from __future__ import annotations

from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers.cached_iterations import is_endless
from dsnb.dispatcher.state import BEGUN, ENDED, NEVER_BEGUN, Iteration, Worker
from dsnb.pipeline.modes import STATIC_MODES, check_mode, check_worker_count
from dsnb.pipeline.registered import registered_support
from dsnb.wire.messages import DatasetInfo, JoinRequest


def check(core: Context, request: JoinRequest, info: DatasetInfo) -> None:
    """Refuse an iteration that cannot be divided into shards.

    Raises:
        NotFoundError: the mode divides files, and there are none.
        FailedPreconditionError: the pipeline is marked for the mode HINT, and the mode is another one.
        InvalidArgumentError: there are no workers, or fewer files than workers.
    """
    offer = registered_support(info)
    check_mode(request.mode, offer)
    known = core.state.jobs.get(request.job_name)
    same = known is not None and known.dataset_id == request.dataset_id
    begun = (
        same
        and known is not None
        and (request.iteration in known.iterations or request.iteration in known.archived_iterations)
    )
    if request.mode in STATIC_MODES and not begun:
        check_worker_count(request.mode, offer, count(core))


def shard_size(info: DatasetInfo, mode: str, number: int, index: int) -> int | None:
    """How many elements a shard of a dataset of known length has; None if that follows from its files or the hint."""
    if mode == "HINT" or registered_support(info).shards_by_file(mode):
        return None
    return len(range(index, info.cardinality, number))


def count(core: Context) -> int:
    """The number of shards of an iteration that begins now."""
    return len(core.config.worker_addresses or _available_workers(core))


def first_owners(core: Context) -> list[tuple[int, str]]:
    """The shards of an iteration that begins now, each with the uid of the worker that produces it."""
    present, entries = _available_workers(core), core.config.worker_addresses
    if entries:
        return [(worker.static_index, worker.uid) for worker in present if 0 <= worker.static_index < len(entries)]
    return [(shard, worker.uid) for shard, worker in enumerate(present)]


def has_task(core: Context, iteration: Iteration, worker: Worker) -> bool:
    """Whether a worker has a task in an iteration."""
    return any(core.state.tasks[task].worker == worker.uid for task in iteration.tasks)


def vacant_shard(core: Context, job: str, iteration: Iteration, worker: Worker) -> int | None:
    """A shard without a task that a worker can produce; None if there is none or the worker already has a task."""
    silent = core.transient.worker_deadlines.get(worker.uid, core.now) < core.now  # about to be counted as lost
    if iteration.finished or not worker.available or silent or has_task(core, iteration, worker):
        return None
    rounds = iteration.rounds
    if rounds is not None and rounds.end_round is not None:
        return None  # the last rounds are planned
    held = {core.state.tasks[task].shard for task in iteration.tasks}
    held |= {waiting.shard for waiting in rounds.waiting_tasks} if rounds is not None else set()
    # In a coordinated read, a shard that was begun would begin again, and elements of finite data would come twice.
    once = rounds is not None and bool(rounds.schedules) and not is_endless(core, core.state.jobs[job])
    taken = (ENDED, BEGUN) if once else (ENDED,)
    free = [at for at, state in enumerate(iteration.shards) if state not in taken and at not in held]
    if core.config.worker_addresses:
        return worker.static_index if worker.static_index in free else None
    return min(free, default=None)


def without_worker(core: Context, iteration: Iteration) -> tuple[str, ...]:
    """Descriptions of the shards that no worker ever had."""
    entries = dict(enumerate(core.config.worker_addresses or ()))
    return tuple(
        f"{at} of {len(iteration.shards)} ({entries.get(at, 'no longer in the list')})"
        for at, state in enumerate(iteration.shards)
        if state == NEVER_BEGUN
    )


def _available_workers(core: Context) -> list[Worker]:
    return [worker for worker in core.state.workers.values() if worker.available]
