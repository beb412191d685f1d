"""What can hold a job up: how each cause shows between two snapshots, in the order in which one hides the next."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from dsnb.dataclass import dataclass
from dsnb.monitor.case import Case
from dsnb.monitor.remedies import enough, instead, more_workers, relief, taken
from dsnb.monitor.words import count, duration, plural, rate, share, size

BUSY = 0.7
"""Workers that are at work for such a part of the time have no more to give."""
_HEAVY = 0.6
"""An operation that takes such a part of all work is worth naming."""
_UNDER_WAY = 0.7
"""A wait of which such a part goes by while something is on the link."""
_MUCH = 1e6
"""Bytes a second; a link that is taken up and carries less is not full but long."""
_SMALL = 10_000
"""Bytes; of smaller elements it is their number that a link has trouble with."""
_FULL_LINK = (
    "Send fewer bytes (uint8 instead of float32, cast where it is used), leave compression to dsnb "
    '(compression="AUTO"), or bring reader and workers nearer to each other.'
)
_LONG_LINK = (
    "Let more be under way: batch before distribute, and leave max_outstanding_requests out; or bring reader and "
    "workers nearer to each other."
)
_DECODES_MUCH = 0.25
_LATE_S = 0.002
"""A thread that gets its turn so late shares its interpreter with one that does not let go of it."""
_AT_WORK = 0.1
"""A process that uses less of a processor does not hold its interpreter: others hold the machine."""
_OWN_LOOP = 0.2
_FULL = 0.75
_STRAGGLES = 0.5
_ENOUGH = 5
"""Elements that the others must have made, or a rate says nothing about the one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    cause: str
    text: str
    remedy: str
    subject: str = ""


def _no_workers(case: Case) -> Cause | None:
    if case.now.workers:
        return None
    return Cause(
        cause="no workers", text="The service has no workers.", remedy=more_workers(case, 2, "starts two workers")
    )


def _holder(case: Case) -> Cause | None:
    """Another trainer asked for the window to wait for it, and fills it."""
    full = {t.task_id for t in case.running if t.capacity_bytes and t.window_bytes >= _FULL * t.capacity_bytes}
    for trainer in case.job.trainers:
        if trainer is case.waiter or trainer.on_lag != "wait":
            continue
        holds = [p for p in trainer.places if p.task_id in full and p.lag >= _FULL * _held(case, p.task_id)]
        if holds:
            nbytes = sum(task.capacity_bytes for task in case.running if task.task_id in full)
            return Cause(
                cause="holder",
                subject=trainer.trainer_id,
                text=f"Trainer {trainer.trainer_id!r} is {count(trainer.lag)} elements behind and asked to be waited "
                f"for: it holds the whole window ({size(nbytes)}).",
                remedy=f'Give it CrossTrainerCache(on_lag="spill") or "skip", a job of its own, or send it away: '
                f"svc.send_away({case.job.name!r}, {trainer.trainer_id!r}).",
            )
    return None


def _held(case: Case, task_id: str) -> int:
    """Elements that a task holds in memory."""
    task = next(task for task in case.job.tasks if task.task_id == task_id)
    return max(1, task.head - task.tail)


def _interpreter(case: Case) -> Cause | None:
    """Thread workers get their turn late: beside a reader that is busy itself, or beside each other."""
    threads = [worker for worker in case.workers or case.now.workers if worker.isolation == "thread"]
    its = [case.between.worker(worker.uid) for worker in threads]
    # Where the process itself does little, it is the machine that is busy.
    late = [worker.late_s for worker in its if worker.cpu > _AT_WORK]
    loop = max((case.of(trainer).own_share or 0.0 for trainer in case.job.trainers), default=0.0)
    if not late or median(late) < _LATE_S or (loop < _OWN_LOOP and len(threads) == 1):
        return None
    beside = f"a loop that takes {share(loop)} of its time" if loop >= _OWN_LOOP else "each other"
    return Cause(
        cause="interpreter",
        text=f"The workers are threads of a process that holds the interpreter: they get their turn "
        f"{duration(median(late))} late on average, beside {beside}.",
        remedy='Process workers would not be held up: dsnb.start(isolation="process").',
    )


def _consumer(case: Case) -> Cause | None:
    """Another consumer of a coordinated read has not come, or is slow: a round is whole when all have taken theirs."""
    rounds = case.job.rounds
    if rounds is None:
        return None
    if any(consumer.state == "absent" for consumer in rounds.consumers):
        return Cause(
            cause="consumer",
            text=f"A round is for all consumers, and the next one waits for {rounds.waits_for}.",
            remedy="Start that consumer again: it joins at the round that is due.",
        )
    others = [trainer for trainer in case.job.trainers if trainer is not case.waiter]
    slowest = max(others, key=lambda trainer: case.of(trainer).own_share or 0.0, default=None)
    if slowest is None or (case.of(slowest).own_share or 0.0) < BUSY:
        return None
    its = case.of(slowest)
    return Cause(
        cause="consumer",
        subject=slowest.trainer_id,
        text=f"A round is for all consumers, and {slowest.trainer_id} spends {share(its.own_share)} of its time in its "
        f"own loop, at {rate(its.consumed)}.",
        remedy="Make that loop faster, or the consumers' work equal (bucket_by_sequence_length before distribute).",
    )


def _link(case: Case) -> Cause | None:
    """Most of what it waits, something has been sent and has not arrived."""
    assert case.waiter is not None
    flight = case.of(case.waiter).flight
    if not flight:
        return None
    task_id = max(flight, key=lambda task_id: flight[task_id])
    under_way = flight[task_id] + case.wait - 1  # it was both, at the least
    if under_way < _UNDER_WAY * case.wait:
        return None
    name = next((place.worker for place in case.waiter.places if place.task_id == task_id), "")
    worker = next((worker for worker in case.now.workers if worker.name == name), None)
    if worker is None or _without_link(case, task_id):
        return None
    sent = case.between.worker(worker.uid).sent_bytes
    small = worker.sent_bytes < _SMALL * worker.sent_elements
    return Cause(
        cause="link",
        subject=name,
        text=f"For {share(under_way)} of the time what it waits for is under way from worker {name}: the link carries "
        f"{size(sent)}/s.",
        remedy=_LONG_LINK if small or sent < _MUCH else _FULL_LINK,
    )


def _without_link(case: Case, task_id: str) -> bool:
    """Whether all that a task gives is handed over within one host, by reference or in shared memory."""
    ways = {link.transfer for link in case.job.links if link.task_id == task_id}
    return bool(ways) and "grpc" not in ways


def decoding(case: Case) -> Cause | None:
    assert case.waiter is not None
    decodes = case.of(case.waiter).decode_share or 0.0
    if decodes < _DECODES_MUCH or decodes < case.wait:
        return None
    return Cause(
        cause="client",
        subject=case.waiter.trainer_id,
        text=f"It spends {share(decodes)} of its time making elements of what arrives.",
        remedy="Batch before distribute, so that workers lay out whole batches.",
    )


def _straggler(case: Case) -> Cause | None:
    """One worker makes less than half of what the others make, although it is at work."""
    span, made = case.between.span_s, case.rates.by_worker
    here = {worker.name: worker for worker in case.workers}
    for name, worker in here.items():
        others = [made.get(other, 0.0) for other in here if other != name]
        if not others or case.between.worker(worker.uid).busy < _STRAGGLES:
            continue
        usual = median(others)
        if usual * span >= _ENOUGH and made.get(name, 0.0) < _STRAGGLES * usual:
            return Cause(
                cause="worker",
                subject=name,
                text=f"Worker {name} makes {rate(made.get(name, 0.0))} where the others make {rate(usual)} each"
                f"{_in_hand(case, name)}.",
                remedy=f"svc.drain({name!r}) takes it out; what else runs on its machine ({worker.address})?",
            )
    return None


def _in_hand(case: Case, worker: str) -> str:
    """For how long a worker has had its oldest splits, where that is known."""
    given = [grant.given for grant in case.job.grants if grant.worker == worker and grant.state == "in hand"]
    return f", and has had splits in hand for {duration(case.now.time - min(given))}" if given else ""


def _operation(case: Case) -> Cause | None:
    """One operation takes most of what the fullest lane of the pipeline does."""
    lane = max(case.lanes, key=lambda lane: lane.busy, default=None)
    if lane is None or lane.busy < BUSY:
        return None
    stage, its = max(lane.stages, key=lambda pair: pair[1].busy)
    if its.busy < _HEAVY * sum(rates.busy for _, rates in lane.stages):
        return None
    part = its.busy / sum(rates.busy for _, rates in case.stages)
    cost = f": {duration(its.busy / its.elements)} for each element" if its.elements else ""
    on = f" on {plural(stage.threads, 'thread')}" if stage.threads else ""
    return Cause(
        cause="operation",
        subject=stage.name,
        text=f"{stage.name} takes {share(part)} of the work of {plural(len(case.workers), 'worker')}{on}{cost}."
        f"{taken(case)}",
        remedy=instead(case, stage) if case.processors.taken else relief(case, stage),
    )


def _workers(case: Case) -> Cause | None:
    if case.busy < BUSY:
        return None
    work, make = ("works", "makes") if len(case.workers) == 1 else ("work", "make")
    text = (
        f"{plural(len(case.workers), 'worker')} {work} {share(case.busy)} of the time and {make} "
        f"{rate(case.rates.produced)}; the readers could take {rate(case.demand)}, and no single operation stands out."
    )
    if case.processors.taken:
        return Cause(cause="processors", text=f"{text}{taken(case)}", remedy=instead(case))
    return Cause(cause="workers", text=text, remedy=f"Have more workers: {enough(case)}")


def _between(case: Case) -> Cause:
    return Cause(
        cause="demand",
        text=f"The workers work only {share(case.busy)} of the time and the links are free: what takes the time is "
        f"asking for elements and handing them over, {rate(case.rates.consumed)}.",
        remedy="Batch before distribute; leave max_outstanding_requests out; prefetch behind it.",
    )


CAUSES: tuple[Callable[[Case], Cause | None], ...] = (
    _no_workers,
    _holder,
    _interpreter,
    _consumer,
    _link,
    decoding,
    _straggler,
    _operation,
    _workers,
    _between,
)
