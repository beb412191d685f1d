"""Receipts: what was delivered of an iteration, from what is recorded and what was reported since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dsnb.dispatcher.context import Context
from dsnb.dispatcher.coverage import ReaderTally, TaskCoverage, sum_of_counts
from dsnb.dispatcher.handlers import jobs, reassignment, shards
from dsnb.dispatcher.state import Iteration, Job, Task
from dsnb.elements.content_digest import sum_of_digests
from dsnb.errors import NotFoundError
from dsnb.monitor.formatting import plural
from dsnb.monitor.receipt import UNKNOWN, PartReceipt, ReaderReceipt, Receipt
from dsnb.pipeline.registered import registered_inexact_reason
from dsnb.wire.field_groups import ReaderCount
from dsnb.wire.messages import ReceiptRequest, SplitRange

_MAX_LISTED = 100
"""How many readers and parts a receipt lists, and how many places of a part."""

Counts = tuple[int, int, int, list[str]]
"""How many elements were delivered, are missing, and came twice; and why a number is not known."""


def requested_receipt(core: Context, request: ReceiptRequest) -> Receipt:
    """The receipt of an epoch, or of the newest one; a job that is gone may have left its last one.

    Raises:
        NotFoundError: there is no such job, or no receipt of that epoch.
    """
    left = core.state.last_receipts.get(request.job_name)
    if left is None:
        job = jobs.known_job(core, request.job_name)
        return receipt(core, job, (request.epoch or job.newest + 1) - 1)
    if request.epoch not in (0, left.epoch):
        known = f"the job is gone, and left only the receipt of its newest epoch, {left.epoch}"
        raise _no_receipt(left.job, request.epoch, known)
    return left


def last_receipt(core: Context, job: Job, stopped: str) -> Receipt | None:
    """The receipt of the newest iteration of a job that ends now; None if it had none.

    Args:
        core: State and decisions of the dispatcher.
        job: The job.
        stopped: Why the job ends, for an iteration that is not over.
    """
    if job.newest not in job.iterations and job.newest not in job.receipts:
        return None
    found = receipt(core, job, job.newest)
    return found if found.over else replace(found, stopped=stopped)


def receipt(core: Context, job: Job, number: int) -> Receipt:
    """What was delivered of an iteration of a job, archived or not.

    Raises:
        NotFoundError: there is no such iteration, or its receipt is no longer kept.
    """
    if number in job.receipts:
        return job.receipts[number]
    iteration = job.iterations.get(number)
    if iteration is None:
        known = f"its newest epoch is {job.newest + 1}" if job.newest >= 0 else "it has no epoch yet"
        kept = "only the newest 1,000 receipts are kept, and none of an epoch that was dropped unfinished"
        raise _no_receipt(job.name, number + 1, f"{known}; {kept}")
    parts = {**iteration.gone_tasks, **{task: _live(core, core.state.tasks[task]) for task in iteration.tasks}}
    expected = _expected(core, job, iteration, parts.values())
    readers = _readers(core, job, iteration, expected)
    if job.ranks:
        delivered, missing, twice, notes = _received_by_ranks(job, readers, expected)
    elif job.cached:
        delivered, missing, twice, notes = _received_by_trainers(iteration, readers, expected)
    elif job.num_consumers:
        delivered, missing, twice, notes = _received_in_rounds(readers, expected)
    else:
        delivered, missing, twice, notes = _received(job, readers, list(parts.values()), expected)
    notes += (f"no worker came for shard {shard}" for shard in shards.without_worker(core, iteration))
    digest = _digest(job, readers, notes)
    over = iteration.finished and all(core.state.clients[client].finished for client in iteration.clients)
    listed = [_part(core, job, iteration, task_id, part) for task_id, part in parts.items()]
    return Receipt(
        job=job.name,
        epoch=number + 1,
        mode=job.mode,
        cached=job.cached and not job.ranks,
        over=over,
        expected=expected,
        delivered=delivered,
        missing=missing if over else UNKNOWN,
        twice=twice if over else UNKNOWN,
        digest=digest if over else "",
        readers=tuple(readers[:_MAX_LISTED]),
        parts=() if job.cached or job.num_consumers else tuple(_worst_first(listed)[:_MAX_LISTED]),
        notes=tuple(notes) if over else (),
    )


def _no_receipt(job: str, epoch: int, known: str) -> NotFoundError:
    return NotFoundError(f"there is no receipt of epoch {epoch} of job {job!r}", did="nothing was changed", hint=known)


def _live(core: Context, task: Task) -> TaskCoverage:
    """What is known to be delivered of a task that is there."""
    expected = reassignment.expected_elements(core, core.state.jobs[task.job], task)
    found = core.state.coverage(
        task, core.transient.consumed_positions(task), UNKNOWN if expected is None else expected
    )
    clients = core.state.iteration(task.job, task.iteration).clients
    for client in clients:
        for holding in core.state.clients[client].final_holdings or ():
            if holding.task_id == task.task_id:
                found.add_consumed(holding)
    for holding in core.transient.holdings.get(task.task_id, {}).values():
        found.add_consumed(holding)
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


# ---- readers


def _readers(core: Context, job: Job, iteration: Iteration, expected: int) -> list[ReaderReceipt]:
    """One line for each reader; clients of one trainer of the cross-trainer cache are added up."""
    grouped: dict[str, list[tuple[str, ReaderTally]]] = {}
    for client_id, tally in iteration.readers.items():
        name = tally.trainer_id if job.cached else ""
        grouped.setdefault(name or tally.trainer_id or f"reader {client_id}", []).append((client_id, tally))
    found = []
    for name, tallies in grouped.items():
        count = sum_of_counts(_count(core, client_id, tally) for client_id, tally in tallies)
        states = {tally.state for _, tally in tallies}
        total = UNKNOWN if count is None else count.elements
        ended = job.cached and name in iteration.ended_trainers and expected >= 0 and total >= 0
        if job.ranks and total != UNKNOWN:
            total, ended = _own_elements(job, name, total), False
        found.append(
            ReaderReceipt(
                reader=name,
                state=next(state for state in ("reading", "died", "left") if state in states),
                elements=total,
                missing=max(0, expected - total) if ended else UNKNOWN,
                digest="" if count is None else count.digest.hex(),
            )
        )
    if job.num_consumers or job.ranks:  # by their numbers
        found.sort(key=lambda reader: (len(reader.reader), reader.reader))
    return found


def _count(core: Context, client_id: str, tally: ReaderTally) -> ReaderCount | None:
    client = core.state.clients.get(client_id)
    return tally.count if client is None else client.final_count or core.transient.client_counts.get(client_id)


def _total(counts: Sequence[int]) -> int:
    """The sum of numbers; unknown if one of them is."""
    return UNKNOWN if UNKNOWN in counts else sum(counts)


def _digest(job: Job, readers: list[ReaderReceipt], notes: list[str]) -> str:
    """The digest of what all readers consumed, or of what each trainer consumed; empty if it is not known."""
    digests = [reader.digest for reader in readers if reader.elements]
    if not any(digests):
        return ""
    if not all(digests):
        notes.append("not every reader reported a digest of contents")
        return ""
    if job.cached and len(set(digests)) > 1:
        notes.append("trainers consumed different contents, by their digests")
        return ""
    return digests[0] if job.cached else sum_of_digests(map(bytes.fromhex, digests)).hex()


# ---- counts


def _received(job: Job, readers: list[ReaderReceipt], parts: list[TaskCoverage], expected: int) -> Counts:
    """What all readers received, from the numbers of the elements and from the readers' own counts."""
    notes = list[str]()
    lost, restarts = any(part.lost for part in parts), sum(part.restarts for part in parts)
    delivered, missing = _different(parts, expected)
    if missing == UNKNOWN:
        notes.append("a worker is gone, and how many elements its splits make is not known")
    died = sum(reader.state == "died" for reader in readers)
    if died:
        notes.append(
            f"{plural(died, 'reader')} died without reporting the last elements consumed: these count as not "
            "delivered, went to other readers, and may have come twice"
        )
    if died and lost:
        missing = UNKNOWN
        notes.append(
            "elements of lost workers that a dead reader had received count as delivered, although it may not have "
            "consumed them"
        )
    if restarts and job.mode == "OFF":
        return delivered, missing, UNKNOWN if died else sum(part.earlier_elements for part in parts), notes
    if restarts:
        notes.append(f"unfinished splits began again {plural(restarts, 'time')}: elements of these may have come twice")
    twice = UNKNOWN if restarts or died else _twice(readers, notes, delivered)
    return delivered, missing, twice, notes


def _different(parts: list[TaskCoverage], expected: int) -> tuple[int, int]:
    """How many different elements were delivered, and how many are missing."""
    if any(part.restarts for part in parts):  # elements of an earlier sequence have other numbers in this one
        missing = _total([UNKNOWN if part.expected == UNKNOWN else len(part.missing()) for part in parts])
        return UNKNOWN if UNKNOWN in (expected, missing) else expected - missing, missing
    delivered = sum(len(part.consumed) for part in parts)
    if expected != UNKNOWN:
        return delivered, max(0, expected - delivered)
    lost = any(part.lost for part in parts)
    return delivered, UNKNOWN if lost else sum(part.consumed.end - len(part.consumed) for part in parts)


def _twice(readers: list[ReaderReceipt], notes: list[str], delivered: int) -> int:
    """How many deliveries repeated an element: what the readers counted, minus the different elements."""
    total = _total([reader.elements for reader in readers])
    if total == UNKNOWN:
        notes.append("a reader has not said yet how many elements it consumed")
    elif total < delivered:
        notes.append(f"the readers counted {delivered - total:,} elements fewer than was reported as consumed")
    return total - delivered if total >= delivered else UNKNOWN


def _received_by_trainers(iteration: Iteration, readers: list[ReaderReceipt], expected: int) -> Counts:
    """What the trainers of the cross-trainer cache received, each of the whole iteration."""
    notes = list[str]()
    ended = [reader for reader in readers if reader.reader in iteration.ended_trainers]
    if len(ended) < len(readers):
        notes.append(f"{plural(len(readers) - len(ended), 'trainer')} left before the end")
    fewest, missing = min((reader.elements for reader in readers), default=0), _total([r.missing for r in ended])
    if missing == UNKNOWN:
        notes.append("how many elements the epoch has is not known, or a client of a trainer died")
        return fewest, UNKNOWN, UNKNOWN, notes
    return fewest, missing, sum(max(0, reader.elements - expected) for reader in ended), notes


def _own_elements(job: Job, name: str, count: int) -> int:
    """How many of the first `count` elements are those of a rank, as in "rank 0 of 2"; it goes through all of them."""
    steps, rest = divmod(count, job.ranks)
    return steps + (job.at_end != "drop" and int(name.split()[1]) < rest)


def _received_by_ranks(job: Job, readers: list[ReaderReceipt], expected: int) -> Counts:
    """What the ranks of one order received of their own."""
    delivered = _total([reader.elements for reader in readers])
    if UNKNOWN in (expected, delivered):
        note = "how many elements the epoch has is not known, or a rank died without reporting the last ones consumed"
        return delivered, UNKNOWN, UNKNOWN, [note]
    missing = max(0, expected - delivered)
    if job.at_end == "drop":
        dropped = missing and missing == expected % job.ranks
        return delivered, missing, 0, [f"{plural(missing, 'element')} at the end made no whole step"] if dropped else []
    return delivered, missing, UNKNOWN if missing else 0, []


def _received_in_rounds(readers: list[ReaderReceipt], expected: int) -> Counts:
    """What the consumers of a coordinated read received, by their own counts."""
    delivered = _total([reader.elements for reader in readers]) if readers else UNKNOWN
    missing = UNKNOWN if UNKNOWN in (expected, delivered) else max(0, expected - delivered)
    note = "the consumers of the rounds counted this; which elements they received is not recorded"
    return delivered, missing, UNKNOWN, [note]


# ---- parts


def _part(core: Context, job: Job, iteration: Iteration, task_id: str, part: TaskCoverage) -> PartReceipt:
    running = task_id in iteration.tasks and not core.state.tasks[task_id].ended
    places, exact = ([], False) if not part.lost else _missing_at(core, job, part)
    return PartReceipt(
        task_id=task_id,
        worker=part.worker,
        state="lost" if part.lost else "running" if running else "done",
        expected=part.expected,
        delivered=len(part.consumed),
        missing_at=tuple(_shortened(places)),
        exact=exact,
        restarts=part.restarts,
    )


def _missing_at(core: Context, job: Job, part: TaskCoverage) -> tuple[list[str], bool]:
    """Which elements of a lost task are missing, as text, and whether these are all missing; else some of them are."""
    info = core.state.datasets[job.dataset_id].info
    in_order = part.expected != UNKNOWN and not registered_inexact_reason(info, job.mode)
    if job.mode != "DYNAMIC":
        whole = "its pass" if part.shard < 0 else f"shard {part.shard}"
        spans = [_span(first + part.skipped, end + part.skipped) for first, end in part.missing()] if in_order else []
        return [f"elements {span} of {whole}" for span in spans], in_order
    exact = in_order and info.in_split_order and not part.splits.truncated
    found = part.missing_splits() if exact else part.last_splits() if part.expected != len(part.consumed) else []
    return [_split_text(core, job, one) for one in found], exact


def _split_text(core: Context, job: Job, one: SplitRange) -> str:
    provider = core.state.datasets[job.dataset_id].info.providers[one.provider]
    repetition = f" in repetition {one.repetition + 1}" if one.repetition else ""
    return f"splits {_span(one.first, one.end)} of {provider.source}{repetition}"


def _span(first: int, end: int) -> str:
    return f"{first:,} to {end - 1:,}" if first + 1 < end else f"{first:,}"


def _shortened(places: list[str]) -> Iterator[str]:
    yield from places[:_MAX_LISTED]
    if len(places) > _MAX_LISTED:
        yield f"and {len(places) - _MAX_LISTED:,} more places"


def _worst_first(parts: list[PartReceipt]) -> list[PartReceipt]:
    return sorted(parts, key=lambda part: (part.state != "lost", part.missing <= 0))
