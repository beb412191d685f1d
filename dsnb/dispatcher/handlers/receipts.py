"""Receipts: what was delivered of an iteration, from what is recorded and what was reported since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsnb.dispatcher.context import Context
from dsnb.dispatcher.coverage import ReaderTally, TaskCoverage
from dsnb.dispatcher.handlers import reassignment
from dsnb.dispatcher.state import Iteration, Job, Task
from dsnb.errors import NotFoundError
from dsnb.monitor.formatting import plural
from dsnb.monitor.receipt import UNKNOWN, PartReceipt, ReaderReceipt, Receipt
from dsnb.wire.messages import SplitRange, TrainerPosition

_MAX_LISTED = 100
"""How many readers and parts a receipt lists."""


def receipt(core: Context, job: Job, number: int, elements: Mapping[str, int] | None = None) -> Receipt:
    """What was delivered of an iteration of a job, archived or not.

    Args:
        core: State and decisions of the dispatcher.
        job: The job.
        number: The iteration.
        elements: How many elements present clients have consumed, by their last reports.

    Raises:
        NotFoundError: there is no such iteration, or its receipt is no longer kept.
    """
    if number in job.receipts:
        return job.receipts[number]
    iteration = job.iterations.get(number)
    if iteration is None:
        raise _no_receipt(job, number)
    parts = {**iteration.gone_tasks, **{task: _live(core, core.state.tasks[task]) for task in iteration.tasks}}
    expected = _expected(core, job, iteration, parts.values())
    readers = _readers(core, job, iteration, elements or {}, expected)
    over = iteration.finished and all(core.state.clients[client].finished for client in iteration.clients)
    delivered, missing, twice, notes = (
        _trainers_received(iteration, readers, expected)
        if job.cached
        else _rounds_received(iteration, expected)
        if job.num_consumers
        else _received(job, readers, parts.values(), expected)
    )
    listed = [_part(core, job, iteration, task_id, part) for task_id, part in parts.items()]
    return Receipt(
        job=job.name,
        epoch=number + 1,
        mode=job.mode,
        cached=job.cached,
        over=over,
        expected=expected,
        delivered=delivered,
        missing=missing if over else UNKNOWN,
        twice=twice if over else UNKNOWN,
        readers=tuple(readers[:_MAX_LISTED]),
        parts=() if job.cached or job.num_consumers else tuple(_worst_first(listed)[:_MAX_LISTED]),
        notes=notes if over else (),
    )


def reported_positions(core: Context, task: Task) -> tuple[TrainerPosition, ...]:
    """What was consumed of a task by its worker's last report."""
    progress = core.transient.progress.get(task.task_id)
    if progress is None or progress.incarnation != task.incarnation:
        return ()
    return tuple(
        TrainerPosition(trainer_id=trainer.trainer_id, consumed=trainer.consumed_ranges)
        for trainer in progress.trainers
        if trainer.consumed_ranges
    )


def _no_receipt(job: Job, number: int) -> NotFoundError:
    known = f"its epochs are 1 to {job.newest + 1}" if job.newest >= 0 else "it has no epoch yet"
    return NotFoundError(
        f"there is no receipt of epoch {number + 1} of job {job.name!r}",
        did="nothing was changed",
        hint=f"{known}; only the newest 1,000 receipts are kept, and none of an epoch that was dropped unfinished",
    )


def _live(core: Context, task: Task) -> TaskCoverage:
    """What is known to be delivered of a task that is there."""
    expected = reassignment.expected_elements(core, core.state.jobs[task.job], task)
    found = core.state.coverage(task, reported_positions(core, task), -1 if expected is None else expected)
    found.lost, found.unfinished = False, ()
    iteration = core.state.iteration(task.job, task.iteration)
    final = [core.state.clients[client].final_holdings or () for client in iteration.clients]
    told = [*core.transient.holdings.get(task.task_id, {}).values(), *(holding for one in final for holding in one)]
    for holding in told:
        if holding.task_id == task.task_id and holding.incarnation >= task.sequence_incarnation:
            found.consumed.update((part.first, part.end) for part in holding.consumed)
    return found


def _expected(core: Context, job: Job, iteration: Iteration, parts: Iterable[TaskCoverage]) -> int:
    """How many elements an iteration has; `UNKNOWN` if that is not known."""
    cardinality = core.state.datasets[job.dataset_id].info.cardinality
    if cardinality < 0:
        return UNKNOWN
    if job.mode != "OFF" and not iteration.resumed:
        return cardinality
    by_part = [part.expected for part in parts]
    known = min(by_part, default=-1) >= 0 and (job.mode == "OFF" or iteration.finished)
    return sum(by_part) if known else UNKNOWN


def _readers(
    core: Context, job: Job, iteration: Iteration, elements: Mapping[str, int], expected: int
) -> list[ReaderReceipt]:
    """One line for each reader; clients of one trainer of the cross-trainer cache are added up."""
    grouped: dict[str, list[tuple[str, ReaderTally]]] = {}
    for client_id, tally in iteration.readers.items():
        name = tally.trainer_id if job.cached else ""
        grouped.setdefault(name or tally.trainer_id or f"reader {client_id}", []).append((client_id, tally))
    found = []
    for name, tallies in grouped.items():
        counts = [_count(core, client_id, tally, elements) for client_id, tally in tallies]
        states = {tally.state for _, tally in tallies}
        total = sum(counts) if min(counts) >= 0 else UNKNOWN
        ended = job.cached and name in iteration.ended_trainers and expected >= 0 and total >= 0
        found.append(
            ReaderReceipt(
                reader=name,
                state=next(state for state in ("reading", "died", "left") if state in states),
                elements=total,
                missing=max(0, expected - total) if ended else UNKNOWN,
            )
        )
    return found


def _count(core: Context, client_id: str, tally: ReaderTally, elements: Mapping[str, int]) -> int:
    client = core.state.clients.get(client_id)
    if tally.state != "reading" or client is None:
        return tally.elements
    return client.final_elements if client.final_elements >= 0 else elements.get(client_id, UNKNOWN)


Counts = tuple[int, int, int, tuple[str, ...]]
"""Elements that were delivered, are missing, and came twice; and why a number is not known."""


def _received(job: Job, readers: list[ReaderReceipt], parts: Iterable[TaskCoverage], expected: int) -> Counts:
    """What all readers received, from the numbers of the elements and from the readers' own counts."""
    parts, notes = list(parts), list[str]()
    distinct = sum(len(part.consumed) for part in parts)
    again = sum(part.restarts for part in parts)
    if again:
        # Elements of an earlier sequence have other numbers in this one.
        missing = sum(_part_missing(part) for part in parts) if all(p.expected >= 0 for p in parts) else UNKNOWN
        distinct = UNKNOWN if expected < 0 or missing < 0 else expected - missing
    elif expected >= 0:
        missing = max(0, expected - distinct)
    else:
        missing = sum(part.consumed.end - len(part.consumed) for part in parts)
        if any(part.lost for part in parts):
            missing = UNKNOWN
            notes.append("a worker is gone, and how many elements its splits make is not known")
    died = sum(reader.state == "died" for reader in readers)
    if died:
        notes.append(
            f"{plural(died, 'reader')} died without saying what it had consumed last: that counts as not delivered, "
            "went to other readers, and may have come twice"
        )
        if any(part.lost for part in parts):
            missing = UNKNOWN
            notes.append("what it held of lost workers may have gone with it, and counts as delivered")
    twice = UNKNOWN if again or died else _twice(readers, notes, counted=distinct)
    if again and job.mode == "OFF":
        twice = sum(part.earlier_elements for part in parts)
    elif again:
        notes.append(f"unfinished splits began again {plural(again, 'time')}: elements of these may have come twice")
    return distinct, missing, twice, tuple(notes)


def _part_missing(part: TaskCoverage) -> int:
    return max(0, part.expected - len(part.consumed))


def _twice(readers: list[ReaderReceipt], notes: list[str], counted: int) -> int:
    """How many deliveries repeated an element: what the readers counted, minus the different elements."""
    totals = [reader.elements for reader in readers]
    if min(totals, default=0) < 0:
        notes.append("a reader has not said yet how many elements it consumed")
        return UNKNOWN
    if sum(totals) < counted:
        notes.append(f"the readers counted {counted - sum(totals):,} elements fewer than was reported as consumed")
        return UNKNOWN
    return sum(totals) - counted


def _trainers_received(iteration: Iteration, readers: list[ReaderReceipt], expected: int) -> Counts:
    """What the trainers of the cross-trainer cache received, each of the whole iteration."""
    totals = [reader.elements for reader in readers]
    ended = [reader for reader in readers if reader.reader in iteration.ended_trainers]
    notes = []
    if any(reader.missing == UNKNOWN for reader in ended):
        notes.append("how many elements the epoch has is not known, or a client of a trainer died")
    if len(ended) < len(readers):
        notes.append(f"{plural(len(readers) - len(ended), 'trainer')} left before the end")
    if any(reader.missing == UNKNOWN for reader in ended):
        return min(totals, default=0), UNKNOWN, UNKNOWN, tuple(notes)
    twice = sum(max(0, reader.elements - expected) for reader in ended)
    return min(totals, default=0), sum(reader.missing for reader in ended), twice, tuple(notes)


def _rounds_received(iteration: Iteration, expected: int) -> Counts:
    """What the consumers of a coordinated read received, by their own counts."""
    totals = [tally.elements for tally in iteration.readers.values()]
    delivered = sum(totals) if min(totals, default=-1) >= 0 else UNKNOWN
    missing = max(0, expected - delivered) if expected >= 0 and delivered >= 0 else UNKNOWN
    note = "counted by the consumers of the rounds; which elements these are is not recorded"
    return delivered, missing, UNKNOWN, (note,)


def _part(core: Context, job: Job, iteration: Iteration, task_id: str, part: TaskCoverage) -> PartReceipt:
    running = task_id in iteration.tasks and not core.state.tasks[task_id].ended
    unfinished = part.unfinished if part.expected != len(part.consumed) else ()
    return PartReceipt(
        task_id=task_id,
        worker=part.worker,
        state="lost" if part.lost else "running" if running else "done",
        expected=part.expected,
        delivered=len(part.consumed),
        splits=tuple(_split_text(core, job, one) for one in unfinished),
        split_count=sum(one.end - one.first for one in unfinished),
        restarts=part.restarts,
    )


def _split_text(core: Context, job: Job, one: SplitRange) -> str:
    source = core.state.datasets[job.dataset_id].info.providers[one.provider].source
    repetition = f" in repetition {one.repetition + 1}" if one.repetition else ""
    return f"{one.first:,} to {one.end - 1:,} of {source}{repetition}"


def _worst_first(parts: list[PartReceipt]) -> list[PartReceipt]:
    return sorted(parts, key=lambda part: (part.state != "lost", part.missing <= 0))
