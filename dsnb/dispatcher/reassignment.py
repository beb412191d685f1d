"""Reassignment: another worker takes a task over, and each reader gets the rest of it once.

Theory of operation. A task is *halted* when its worker is gone: it died, left, was removed, or came back as another
process. Its incarnation goes up, so whatever the old worker still sends or asks is recognised and refused. All clients
of the pass see that in their next update. Each of them stops taking elements of the old incarnation and reports its
*holding*: what it consumed of the task, and what it received and has yet to consume. That takes one message there and
back, whatever the clients' users do meanwhile. A client that dies before it answers is no longer waited for.

When all have answered, the task is *assigned* to a worker. It begins where the old worker said, in its last report,
that nobody needs what lies before (`TaskResume`). It makes the same elements again, drops those that were consumed,
keeps those that a client holds in case that client dies, and sends the rest. Elements keep their numbers, so clients go
on in the same sequence.

That needs a pipeline that makes the same number of elements in the same order again, and a bounded amount of repeated
work. Where it is not so, the task is given up: what did not arrive is counted and announced. The count is of elements
where the pipeline makes one of each split, and else of splits. A task of which nobody received anything can always
begin anew.

A task whose workers die one after the other, before anything more of it is consumed, is given up as well: its elements
kill them.

In mode OFF each worker makes the whole data set, so a worker's pass ends with it; it begins again if the same worker
comes back. So do endless data of the cross-trainer cache, which nobody reads from the beginning.

A task whose pass has no clients stays halted until one comes (`jobs.park`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dsnb.dispatcher import events as e
from dsnb.dispatcher import jobs, positions, sharing
from dsnb.dispatcher import records as r
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.runs import Halt, merged
from dsnb.dispatcher.sharing import endless
from dsnb.dispatcher.state import Iteration, Job, Task, Worker
from dsnb.wire.messages import IndexRange, ReaderPosition, TaskHolding, TrainerPosition
from dsnb.wire.ranges import Ranges

MOST_REPEATED_MS: Final = 30_000
"""The most work that is done again to take a task over."""

MOST_DEATHS: Final = 3
"""Workers that may die over a task before anything of it is consumed: a function that kills them would kill all."""


def halt(core: Context, task: Task, worker: str, reason: str, *, died: bool = False) -> None:
    """Take a task off its worker; `review` then sees to what becomes of it.

    Args:
        core: What the dispatcher works on.
        task: The one that is halted.
        worker: The name of one that is gone; empty if the worker stays.
        reason: What became of it, as in "was lost".
        died: Whether that was sudden, and may be the task's doing.
    """
    progress = core.live.progress.pop(task.task_id, None)
    consumed = progress.trainers if progress is not None else ()
    core.record(r.TaskHalted(task_id=task.task_id, worker=worker, reason=reason, trainers=consumed, died=died))
    core.live.holdings[task.task_id] = {}
    core.instruct(e.TellClients(job=task.job, number=task.number))


def park(core: Context, iteration: Iteration) -> bool:
    """Keep where the tasks of a pass are, and nothing else, until a client comes; False where that cannot be."""
    tasks = [task for task in map(core.state.tasks.__getitem__, iteration.tasks) if not task.ended]
    if any(why_not(core, task) for task in tasks):
        return False
    for task in tasks:
        if task.halt is None:
            core.instruct(e.DropTask(worker=task.worker, task_id=task.task_id))
            halt(core, task, "", "")
    return True


def free_leaving(core: Context, iteration: Iteration) -> None:
    """Have workers that are to leave wait no longer for the readers of a pass that has none."""
    for task in map(core.state.tasks.__getitem__, iteration.tasks):
        if task.halt is None and not task.ended and core.state.workers[task.worker].draining:
            hand_over(core, task)


def hand_over(core: Context, task: Task) -> None:
    """Take a task off a worker that is to leave; another one goes on when its readers have told what they have."""
    worker = core.state.workers[task.worker]
    core.instruct(e.DropTask(worker=worker.uid, task_id=task.task_id))
    halt(core, task, worker.name, "was drained")


def told(core: Context, event: e.HoldingsTold) -> None:
    """Take in what a client has of halted tasks."""
    for holding in event.holdings:
        task = core.state.tasks.get(holding.task_id)
        if task is not None and task.halt is not None and task.incarnation == holding.incarnation:
            core.live.holdings.setdefault(task.task_id, {})[event.client_id] = holding
            conclude(core, task)


def joined(core: Context, client_id: str, iteration: Iteration, before: tuple[TaskHolding, ...] = ()) -> None:
    """A client has come, which has nothing of any task yet but what it consumed `before` it was given up."""
    for task in halted(core, iteration):
        holding = TaskHolding(task_id=task.task_id, incarnation=task.incarnation)
        core.live.holdings.setdefault(task.task_id, {})[client_id] = holding
        conclude(core, task)
    again = sum(holding.untold for holding in before if holding.task_id not in core.state.tasks)
    client = core.state.clients[client_id]
    if again:  # others have had all of that task, and of these its worker thought that nobody had consumed them
        announce_again(core, client.job, again)
    count_dropped(core, client.job, iteration, client.trainer_id, before)


def count_dropped(
    core: Context, name: str, iteration: Iteration, trainer_id: str, told: tuple[TaskHolding, ...]
) -> None:
    """Count what a reader had of tasks that were given up, and will not consume: nobody else gets it."""
    job = core.state.jobs[name]
    lost = sum(max(0, part.end - part.first) for h in told if h.task_id not in core.state.tasks for part in h.held)
    if not lost:
        return
    if iteration.providers and _one_of_each(core, job):
        core.record(r.SplitsLost(job=name, number=iteration.number, provider=0, count=lost))
    whom = f"trainer {trainer_id!r}" if job.cached else "its readers"
    why = "their reader went away before it consumed them"
    core.instruct(
        e.Announce(level="warning", text=f"job {name!r}: {lost:,} elements of lost workers did not reach {whom}: {why}")
    )


def announce_again(core: Context, job: str, elements: int) -> None:
    """Tell of elements that were consumed twice."""
    text = f"job {job!r}: {elements:,} elements reached two readers; one of them came back after it was given up"
    core.instruct(e.Announce(level="warning", text=text))


def review(core: Context, iteration: Iteration) -> None:
    """Look at the halted tasks of a pass again: a client has left, or a worker has come."""
    for task in halted(core, iteration):
        conclude(core, task)


def halted(core: Context, iteration: Iteration) -> list[Task]:
    """The tasks of a pass that have no worker."""
    return [task for task in map(core.state.tasks.__getitem__, iteration.tasks) if task.halt is not None]


def conclude(core: Context, task: Task) -> None:
    """Assign a halted task, or give it up, when all clients have told what they have of it."""
    job = core.state.jobs[task.job]
    iteration = job.iterations[task.number]
    holdings = core.live.holdings.setdefault(task.task_id, {})
    if not iteration.clients or any(client not in holdings for client in iteration.clients):
        return
    assert task.halt is not None
    told = [(core.state.clients[client].trainer_id, client, holdings[client]) for client in iteration.clients]
    trainers = _positions(task, told if job.cached else [("", client, holding) for _, client, holding in told])
    if _can_go_on(core, job, task, task.halt, trainers):
        worker = _least_busy(core, iteration)
        if worker is not None:
            _assign(core, task, worker, trainers)
    else:
        _give_up(core, job, task, trainers)


def _can_go_on(core: Context, job: Job, task: Task, halt: Halt, trainers: list[TrainerPosition]) -> bool:
    """Whether another worker can take a halted task over."""
    ends_with_its_worker = job.mode == "OFF" and halt.worker != ""
    if ends_with_its_worker or task.deaths >= MOST_DEATHS or task.left.forgotten:
        return False
    untouched = not any(t.offset or t.consumed or any(reader.received for reader in t.readers) for t in trainers)
    return untouched or not why_not(core, task)


def why_not(core: Context, task: Task) -> str:
    """Why a task could not be taken over, in words; empty if it could."""
    job = core.state.jobs[task.job]
    dataset = core.state.datasets[job.dataset_id]
    if job.cached and endless(core, job):
        return "trainers share endless data"
    if dataset.inexact:
        return dataset.inexact
    if task.left.forgotten:
        return "it was given more runs of splits than are remembered"
    if task.resume is not None and task.resume.repeated_ms > MOST_REPEATED_MS:
        return f"about {task.resume.repeated_ms // 1000} s of work would have to be done again"
    return ""


def awaits(core: Context, job: Job, iteration: Iteration, worker: Worker) -> bool:
    """Whether a pass has a task that begins again with this worker, and with no other."""
    return _tied(core, job) and any(t.halt and t.halt.worker == worker.name for t in halted(core, iteration))


def _tied(core: Context, job: Job) -> bool:
    """Whether a task of a job can begin again with its own worker only."""
    return job.mode == "OFF" or (job.cached and endless(core, job))


def _least_busy(core: Context, iteration: Iteration) -> Worker | None:
    """The worker with the fewest tasks of a pass; None where there is none."""
    tasks = [core.state.tasks[task].worker for task in iteration.tasks]
    present = [worker for worker in core.state.workers.values() if not worker.draining and not _silent(core, worker)]
    return min(present, key=lambda worker: tasks.count(worker.uid), default=None)


def _silent(core: Context, worker: Worker) -> bool:
    """Whether a worker is about to be counted as lost."""
    return core.live.workers.get(worker.uid, core.now) < core.now


def _assign(core: Context, task: Task, worker: Worker, trainers: list[TrainerPosition]) -> None:
    before = task.halt
    assert before is not None
    begin = _begin(core, task, trainers)
    if begin.first:
        _close(core, task)  # before the new worker says so
    core.live.holdings.pop(task.task_id, None)
    core.record(r.TaskAssigned(task_id=task.task_id, worker=worker.uid, begin=begin))
    core.instruct(
        e.StartTask(worker=worker.uid, task_id=task.task_id),
        e.TellClients(job=task.job, number=task.number),
    )
    if before.worker:  # else its pass had no readers for a while
        text = f"job {task.job!r}: worker {worker.name} takes over the part of worker {before.worker}"
        core.instruct(e.Announce(level="info", text=text))


def _close(core: Context, task: Task) -> None:
    """Elements of a task that trainers share are gone: newcomers who want all of a pass get another."""
    if core.state.jobs[task.job].cached:
        sharing.close(core, task.task_id)


def _begin(core: Context, task: Task, trainers: list[TrainerPosition]) -> r.Begin:
    """Where the worker that takes a task over begins: where the last one said, if that is early enough for all."""
    job = core.state.jobs[task.job]
    iteration = job.iterations[task.number]
    known = task.takeover or task.begin or r.Begin(entropy=positions.root_of(iteration, task))
    resume = task.resume
    needing = _needing(core, job, iteration) if job.cached else {""}
    if resume is None or needing - {t.trainer_id for t in trainers if t.offset >= resume.index}:
        trainers = list(_from(known.first, trainers))
        return replace(known, runs=task.left.listed(), taken_over=True, trainers=tuple(trainers))
    return r.Begin(
        entropy=known.entropy,
        ended=known.ended,
        runs=task.left.behind(resume.splits if job.cached else ()).listed(),
        taken_over=True,
        first=resume.index,
        resume=resume.point,
        trainers=tuple(_from(resume.index, trainers)),
    )


def _from(first: int, trainers: Iterable[TrainerPosition]) -> Iterable[TrainerPosition]:
    """Positions without what lies before the first element that will be made."""
    for trainer in trainers:
        consumed = Ranges((part.first, part.end) for part in trainer.consumed)
        consumed.drop_below(first)
        yield replace(trainer, consumed=_listed(consumed))


def _positions(task: Task, told: Iterable[tuple[str, str, TaskHolding]]) -> list[TrainerPosition]:
    """What each trainer had: as is known already, and as its clients tell now."""
    known, readers = list(task.known), dict[str, list[ReaderPosition]]()
    for trainer_id, client, holding in told:
        known.append(TrainerPosition(trainer_id=trainer_id, consumed=holding.consumed))
        reader = ReaderPosition(client_id=client, received=holding.received, held=holding.held)
        readers.setdefault(trainer_id, []).append(reader)
    return [replace(trainer, readers=tuple(readers.get(trainer.trainer_id, ()))) for trainer in merged(known)]


def _listed(ranges: Ranges) -> tuple[IndexRange, ...]:
    return tuple(IndexRange(first=first, end=end) for first, end in ranges)


# ---- what does not arrive


def _give_up(core: Context, job: Job, task: Task, trainers: list[TrainerPosition]) -> None:
    """Count what did not arrive; then the task begins again where the same worker came back, or is dropped."""
    halt, iteration = task.halt, job.iterations[task.number]
    assert halt is not None
    back = next((w for w in core.state.workers.values() if w.name == halt.worker and not w.draining), None)
    again = back is not None and _tied(core, job)
    _close(core, task)
    missing = _missing(core, job, task, trainers)
    splits = _lose_splits(core, task, missing)
    for trainer_id, elements in missing:
        ends = elements < 0 and (splits > 0 or not iteration.providers)
        if elements > 0 or ends or again or endless(core, job):
            _tell_loss(core, task, halt, trainer_id, splits, elements, again=again)
    core.live.holdings.pop(task.task_id, None)
    if again and back is not None:
        core.record(r.TaskAssigned(task_id=task.task_id, worker=back.uid))
        core.instruct(e.StartTask(worker=back.uid, task_id=task.task_id))
    else:
        if iteration.shards:  # begun anew it would give again what has arrived
            core.record(r.TaskEnded(task_id=task.task_id))
        jobs.drop_task(core, task.task_id)
        jobs.finish_if_over(core, job.name, iteration)
    core.instruct(e.TellClients(job=job.name, number=iteration.number))


def _lose_splits(core: Context, task: Task, missing: Iterable[tuple[str, int]]) -> int:
    """Count the splits as lost of which not all elements arrived, as far as that is known; returns how many.

    Where each makes one element these are the missing ones; else all that the task was not done with.
    """
    total, exact = 0, max((elements for _, elements in missing), default=-1)
    for number, given in task.given.items():
        lost = exact if exact >= 0 else given - (task.done[number] if number < len(task.done) else 0)
        if lost > 0:
            total += lost
            core.record(r.SplitsLost(job=task.job, number=task.number, provider=number, count=lost))
    return total


def _missing(core: Context, job: Job, task: Task, trainers: list[TrainerPosition]) -> list[tuple[str, int]]:
    """How many elements did not reach each trainer; -1 where that cannot be known."""
    expected = _expected(core, job, task)
    if not job.cached:
        had = Ranges(part for trainer in trainers for part in _received(trainer))
        return [("", -1 if expected is None else max(0, expected - len(had)))]
    had_by = {trainer.trainer_id: Ranges(_received(trainer)) for trainer in trainers}
    furthest = max((had.end for had in had_by.values()), default=0)
    end = expected if expected is not None else furthest if endless(core, job) else None
    iteration = job.iterations[task.number]
    readers = _needing(core, job, iteration)
    return [
        (trainer_id, -1 if end is None else max(0, end - len(had_by.get(trainer_id, Ranges()))))
        for trainer_id in iteration.trainers
        if trainer_id in readers
    ]


def _needing(core: Context, job: Job, iteration: Iteration) -> set[str]:
    """The trainers that are to get all of a pass: of data with an end, also those that are away and have not had it."""
    present = _present(core, iteration)
    return present if endless(core, job) else present | (set(iteration.trainers) - set(iteration.ended))


def _present(core: Context, iteration: Iteration) -> set[str]:
    """The trainers that have a client in a pass."""
    return {core.state.clients[client].trainer_id for client in iteration.clients}


def _received(trainer: TrainerPosition) -> Iterable[tuple[int, int]]:
    yield 0, trainer.offset
    for part in trainer.consumed:
        yield part.first, part.end
    for reader in trainer.readers:
        for part in reader.held:
            yield part.first, part.end


def _expected(core: Context, job: Job, task: Task) -> int | None:
    """How many elements the task would have made, of the splits that it was given; None where nobody knows."""
    dataset = core.state.datasets[job.dataset_id]
    if dataset.cardinality < 0 or (task.begin is not None and task.begin.failed):
        return None
    behind = task.begin.skip if task.begin is not None else 0
    if job.mode == "OFF":
        return dataset.cardinality - behind
    return task.total - behind if job.mode == "DYNAMIC" and _one_of_each(core, job) else None


def _one_of_each(core: Context, job: Job) -> bool:
    """Whether each split of a job's dataset makes one element."""
    dataset = core.state.datasets[job.dataset_id]
    return len(dataset.providers) == 1 and dataset.providers[0][1] == dataset.cardinality


def _tell_loss(
    core: Context, task: Task, halt: Halt, trainer_id: str, splits: int, elements: int, *, again: bool
) -> None:
    record = r.TaskLost(
        task_id=task.task_id,
        worker=halt.worker,
        splits=splits,
        reason=halt.reason,
        elements=elements,
        trainer_id=trainer_id,
        again=again,
    )
    core.record(record)
    core.instruct(e.TellLoss(job=task.job, number=task.number, loss=record))
    iteration = core.state.iteration(task.job, task.number)
    if not trainer_id or trainer_id in _present(core, iteration) | set(iteration.away):  # who left does not want it
        core.instruct(e.Announce(level="warning", text=_loss_text(record, task.job)))


def _loss_text(loss: r.TaskLost, job: str) -> str:
    if not loss.elements:
        return f"job {job!r}: the part of worker {loss.worker} {'begins again' if loss.again else 'ends here'}"
    known, splits = loss.elements > 0, loss.splits
    count = f"{loss.elements:,} elements" if known else f"elements of {splits:,} splits" if splits else "elements"
    whom = f"trainer {loss.trainer_id!r}" if loss.trainer_id else "its readers"
    ending = "; that part begins again" if loss.again else ""
    return f"job {job!r}: {count} of the part of worker {loss.worker} did not reach {whom}{ending}"
