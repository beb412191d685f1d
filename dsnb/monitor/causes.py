"""The possible bottlenecks of a job: how each one shows between two snapshots.

`CAUSES` lists the rules in the order in which one cause hides the next; the first rule that returns a cause wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from dsnb.monitor.evidence import Evidence
from dsnb.monitor.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
    plural,
    wait_level,
)
from dsnb.monitor.remedies import (
    busy_cpus_text,
    cpu_bound_remedy,
    scale_remedy,
    shared_workers_remedy,
    speed_up_remedy,
    workers_remedy,
)
from dsnb.monitor.snapshot import WorkerStatus

SATURATED_SHARE = 0.7
"""Workers that work for at least this share of the time are saturated."""
_DOMINANT_SHARE = 0.6
"""An operation that takes at least this share of all work is named as the cause."""
_IN_FLIGHT_SHARE = 0.7
"""A reader is bound by the network if, for at least this share of its waiting time, something was being transferred."""
_FULL_LINK_BYTES_PER_S = 1e6
"""Bytes a second; a busy network connection that carries less than this has high latency rather than too little
bandwidth."""
_SMALL_ELEMENT_BYTES = 10_000
"""Bytes; for elements smaller than this, their number limits the transfer rather than their bytes."""
_FULL_LINK_REMEDY = (
    "Send fewer bytes (uint8 instead of float32, converted by the reader), let dsnb choose the compression "
    '(compression="AUTO"), or run the reader and the workers closer to each other.'
)
_HIGH_LATENCY_REMEDY = (
    "Send more at a time: batch before distribute, and do not set max_outstanding_requests. Or run the reader and the "
    "workers closer to each other."
)
_DECODE_BOUND_SHARE = 0.25
_HIGH_LATE_S = 0.002
"""Seconds; a thread that wakes up at least this late competes for the GIL with a thread that holds it for long."""
_ACTIVE_CPUS = 0.1
"""CPUs; if a process uses less than this, other processes keep the machine busy, and the GIL is not the cause."""
_BUSY_LOOP_SHARE = 0.2
_HELD_BACK_SHARE = 0.2
_MOST_NAMES = 3
_FULL_WINDOW_SHARE = 0.75
_STRAGGLER_RATIO = 0.5
_MIN_ELEMENTS = 5
"""Minimum number of elements that the median other worker produced; with fewer, the rates are not comparable."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    cause: str
    text: str
    remedy: str
    subject: str = ""


def _no_workers(evidence: Evidence) -> Cause | None:
    if evidence.snapshot.workers:
        return None
    return Cause(
        cause="no workers", text="The service has no workers.", remedy=workers_remedy(evidence, 2, "starts two workers")
    )


def _window_held_by_trainer(evidence: Evidence) -> Cause | None:
    """Another trainer reads with `on_lag="wait"` and is so far behind that the window is full."""
    full = {
        t.task_id
        for t in evidence.running
        if t.capacity_bytes and t.window_bytes >= _FULL_WINDOW_SHARE * t.capacity_bytes
    }
    for trainer in evidence.job.trainers:
        if trainer is evidence.waiting_reader or trainer.on_lag != "wait" or trainer.evicted_by:
            continue
        holds = [
            p
            for p in trainer.cursors
            if p.task_id in full and p.lag >= _FULL_WINDOW_SHARE * _elements_in_memory(evidence, p.task_id)
        ]
        if holds:
            nbytes = sum(task.capacity_bytes for task in evidence.running if task.task_id in full)
            return Cause(
                cause="holder",
                subject=trainer.trainer_id,
                text=f"Trainer {trainer.trainer_id!r} is {format_count(trainer.lag)} elements behind, and with "
                f'on_lag="wait" the others wait for it: the window is full ({format_bytes(nbytes)}).',
                remedy=f'Use CrossTrainerCache(on_lag="spill") or "skip", give it a job of its own, or remove it: '
                f"svc.evict({evidence.job.name!r}, {trainer.trainer_id!r}).",
            )
    return None


def _elements_in_memory(evidence: Evidence, task_id: str) -> int:
    """The number of a task's elements in memory, at least 1."""
    task = next(task for task in evidence.job.tasks if task.task_id == task_id)
    return max(1, task.head - task.tail)


def _gil_contention(evidence: Evidence) -> Cause | None:
    """Thread workers wake up late: they compete for the GIL with a busy reader, or with each other."""
    threads = [worker for worker in evidence.workers or evidence.snapshot.workers if worker.isolation == "thread"]
    rates = [evidence.rates.worker(worker.uid) for worker in threads]
    # If the process itself uses little CPU, other processes cause the delay.
    measured = [worker for worker in rates if worker.used_cpus > _ACTIVE_CPUS]
    # All of them are threads of one process, and each may have been measured only once since the older snapshot.
    samples = sum(worker.latency_samples for worker in measured)
    mean_late_s = sum(worker.late_s for worker in measured) / samples if samples else 0.0
    own_loop_share = max(
        (evidence.trainer_rates(trainer).own_loop_share or 0.0 for trainer in evidence.job.trainers), default=0.0
    )
    if mean_late_s < _HIGH_LATE_S or (own_loop_share < _BUSY_LOOP_SHARE and len(threads) == 1):
        return None
    competitor = (
        f"a training loop that uses {format_share(own_loop_share)} of its time"
        if own_loop_share >= _BUSY_LOOP_SHARE
        else "each other"
    )
    return Cause(
        cause="interpreter",
        text=f"The workers are threads that compete for the GIL with {competitor}: they wake up "
        f"{format_duration(mean_late_s)} late on average.",
        remedy=_process_remedy(threads),
    )


def _process_remedy(threads: Sequence[WorkerStatus]) -> str:
    if all(worker.state == "draining" for worker in threads):
        return "Processes have replaced them: they take over with the next epoch, and this one ends where it began."
    return (
        'Workers in processes of their own do not compete for it: dsnb.start(isolation="process"), or "auto" to begin '
        "with threads."
    )


def _slow_consumer(evidence: Evidence) -> Cause | None:
    """Another consumer of a coordinated read is absent or slow; a round ends only when all consumers have taken it."""
    rounds = evidence.job.rounds
    if rounds is None:
        return None
    if any(consumer.state == "absent" for consumer in rounds.consumers):
        return Cause(
            cause="consumer",
            text=f"A round needs all consumers, and the next one waits for {rounds.waits_for}.",
            remedy="Start that consumer again: it joins at the next round.",
        )
    others = [trainer for trainer in evidence.job.trainers if trainer is not evidence.waiting_reader]
    slowest = max(others, key=lambda trainer: evidence.trainer_rates(trainer).own_loop_share or 0.0, default=None)
    if slowest is None or (evidence.trainer_rates(slowest).own_loop_share or 0.0) < SATURATED_SHARE:
        return None
    its = evidence.trainer_rates(slowest)
    return Cause(
        cause="consumer",
        subject=slowest.trainer_id,
        text=f"A round is for all consumers, and {slowest.trainer_id} spends {format_share(its.own_loop_share)} of its "
        f"time in its own loop, at {format_rate(its.consumed)}.",
        remedy="Make that loop faster, or the consumers' work equal (bucket_by_sequence_length before distribute).",
    )


def _held_back(evidence: Evidence) -> Cause | None:
    """The workers hold the job back, so that other jobs get their shares of the processors."""
    held_back, others = evidence.job_rates.held_back, evidence.other_jobs
    if held_back < _HELD_BACK_SHARE or not others:
        return None
    names = [f"job {job.name!r} (weight {job.weight:g})" for job in others[:_MOST_NAMES]]
    more = [plural(len(others) - _MOST_NAMES, "more job")] if len(others) > _MOST_NAMES else []
    return Cause(
        cause="other jobs",
        subject=others[0].name if len(others) == 1 else "",
        text=f"{plural(len(evidence.workers), 'worker')} hold{'s' if len(evidence.workers) == 1 else ''} it back "
        f"{format_share(held_back)} of the time, so that others get their shares of the processors: "
        f"{', '.join([*names, *more])}.{busy_cpus_text(evidence)}",
        remedy=shared_workers_remedy(evidence),
    )


def _link_bound(evidence: Evidence) -> Cause | None:
    """For most of the time that the reader waits, an element has been sent to it and has not arrived."""
    assert evidence.waiting_reader is not None
    flight = evidence.trainer_rates(evidence.waiting_reader).in_flight_share
    if not flight:
        return None
    task_id = max(flight, key=lambda task_id: flight[task_id])
    under_way = flight[task_id] + evidence.wait_share - 1  # lower bound of the share in which both hold
    if under_way < _IN_FLIGHT_SHARE * evidence.wait_share:
        return None
    name = next((cursor.worker for cursor in evidence.waiting_reader.cursors if cursor.task_id == task_id), "")
    worker = next((worker for worker in evidence.snapshot.workers if worker.name == name), None)
    if worker is None or _stays_on_host(evidence, task_id):
        return None
    sent = evidence.rates.worker(worker.uid).sent_bytes
    small = worker.sent_bytes < _SMALL_ELEMENT_BYTES * worker.sent_elements
    return Cause(
        cause="link",
        subject=name,
        text=f"For {format_share(under_way)} of the time, elements for it are being transferred from worker {name}: "
        f"the network connection carries {format_bytes(sent)}/s.",
        remedy=_HIGH_LATENCY_REMEDY if small or sent < _FULL_LINK_BYTES_PER_S else _FULL_LINK_REMEDY,
    )


_ON_HOST = {"local", "shared_memory"}


def _stays_on_host(evidence: Evidence, task_id: str) -> bool:
    """Whether all readers of a task are on its worker's host and use the transfer `local` or `shared_memory`."""
    transfers = {link.transfer for link in evidence.job.links if link.task_id == task_id}
    return bool(transfers) and transfers <= _ON_HOST


def decode_bound(evidence: Evidence) -> Cause | None:
    assert evidence.waiting_reader is not None
    decodes = evidence.trainer_rates(evidence.waiting_reader).decode_share or 0.0
    if decodes < _DECODE_BOUND_SHARE or decodes < evidence.wait_share or _workers_are_short(evidence):
        return None
    return Cause(
        cause="client",
        subject=evidence.waiting_reader.trainer_id,
        text=f"It spends {format_share(decodes)} of its time building elements from received data.",
        remedy="Batch before distribute, so that it receives whole batches.",
    )


def _workers_are_short(evidence: Evidence) -> bool:
    """Whether the reader waits, and without its waiting would take more than the workers can make."""
    return wait_level(evidence.wait_share) == "bad" and evidence.busy > 1 - evidence.wait_share


def convert_bound(evidence: Evidence) -> Cause | None:
    assert evidence.waiting_reader is not None
    converts = evidence.trainer_rates(evidence.waiting_reader).convert_share or 0.0
    if converts < _DECODE_BOUND_SHARE or converts < evidence.wait_share:
        return None
    return Cause(
        cause="conversion",
        subject=evidence.waiting_reader.trainer_id,
        text=f"It spends {format_share(converts)} of its time waiting until elements are tensors on its device.",
        remedy="Send fewer bytes (uint8 instead of float32, converted on the device), and let `prefetch=` of "
        "iter_torch or iter_jax copy ahead of the loop.",
    )


def _straggler(evidence: Evidence) -> Cause | None:
    """One worker produces less than half of the others' median, although it is busy for at least half of the time.

    A worker whose first elements came after the older snapshot does not count: it worked for a part of the time only.
    """
    span, made = evidence.rates.span_s, evidence.job_rates.by_worker
    began = {task.worker for task in evidence.job_before.tasks if task.head}
    here = {worker.name: worker for worker in evidence.workers if worker.name in began}
    for name, worker in here.items():
        others = [made.get(other, 0.0) for other in here if other != name]
        if not others or evidence.rates.worker(worker.uid).busy < _STRAGGLER_RATIO:
            continue
        usual = median(others)
        if usual * span >= _MIN_ELEMENTS and made.get(name, 0.0) < _STRAGGLER_RATIO * usual:
            return Cause(
                cause="worker",
                subject=name,
                text=f"Worker {name} produces {format_rate(made.get(name, 0.0))}, while the others produce "
                f"{format_rate(usual)} each{_oldest_grant_text(evidence, name)}.",
                remedy=f"Check what else runs on its machine ({worker.address}), or remove it: svc.drain({name!r}).",
            )
    return None


def _oldest_grant_text(evidence: Evidence, worker: str) -> str:
    """How long ago a worker got its oldest unfinished splits, as the end of a sentence; empty if it has none."""
    given = [grant.granted_at for grant in evidence.job.grants if grant.worker == worker and grant.state == "in hand"]
    return (
        f", and got its oldest unfinished splits {format_duration(evidence.snapshot.time - min(given))} ago"
        if given
        else ""
    )


def _heavy_operation(evidence: Evidence) -> Cause | None:
    """The busiest stage group is saturated, and one operation takes most of its time."""
    lane = max(evidence.stage_groups, key=lambda lane: lane.busy, default=None)
    if lane is None or lane.busy < SATURATED_SHARE:
        return None
    stage, its = max(lane.stages, key=lambda pair: pair[1].busy)
    if its.busy < _DOMINANT_SHARE * sum(rates.busy for _, rates in lane.stages):
        return None
    part = its.busy / sum(rates.busy for _, rates in evidence.stages)
    cost = f": {format_duration(its.busy / its.elements)} for each element" if its.elements else ""
    on = f" on {plural(stage.threads, 'thread')}" if stage.threads else ""
    return Cause(
        cause="operation",
        subject=stage.name,
        text=f"{stage.name} takes {format_share(part)} of the work of {plural(len(evidence.workers), 'worker')}{on}"
        f"{cost}.{busy_cpus_text(evidence)}",
        remedy=cpu_bound_remedy(evidence, stage)
        if evidence.cpu_capacity.exhausted
        else speed_up_remedy(evidence, stage),
    )


def _saturated_workers(evidence: Evidence) -> Cause | None:
    if evidence.busy < SATURATED_SHARE:
        return None
    work, produce = ("works", "produces") if len(evidence.workers) == 1 else ("work", "produce")
    text = (
        f"{plural(len(evidence.workers), 'worker')} {work} {format_share(evidence.busy)} of the time and {produce} "
        f"{format_rate(evidence.job_rates.produced)}; the readers could consume {format_rate(evidence.demand)}, and no "
        "single operation takes most of the time."
    )
    if evidence.cpu_capacity.exhausted:
        return Cause(cause="processors", text=f"{text}{busy_cpus_text(evidence)}", remedy=cpu_bound_remedy(evidence))
    return Cause(cause="workers", text=text, remedy=f"Add workers: {scale_remedy(evidence)}")


def _hand_over_bound(evidence: Evidence) -> Cause:
    return Cause(
        cause="demand",
        text=f"The workers work only {format_share(evidence.busy)} of the time and the network is not busy: requesting "
        f"and transferring {format_rate(evidence.job_rates.consumed)} takes the time.",
        remedy="Batch before distribute, do not set max_outstanding_requests, and prefetch after distribute.",
    )


CAUSES: tuple[Callable[[Evidence], Cause | None], ...] = (
    _no_workers,
    _window_held_by_trainer,
    _gil_contention,
    _slow_consumer,
    _held_back,
    _link_bound,
    decode_bound,
    convert_bound,
    _straggler,
    _heavy_operation,
    _saturated_workers,
    _hand_over_bound,
)
