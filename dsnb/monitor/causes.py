"""What can hold a job up: how each cause shows between two snapshots, in the order in which one hides the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from statistics import median

from dsnb.monitor.rates import JobRates, Rates, StageRates, TrainerRates, trainer_rates
from dsnb.monitor.snapshot import JobStatus, Snapshot, StageStatus, TaskStatus, TrainerStatus, WorkerStatus
from dsnb.monitor.words import count, duration, plural, rate, share, size

BUSY = 0.7
"""Workers that are at work for such a part of the time have no more to give."""
_HEAVY = 0.6
"""An operation that takes such a part of all work is worth naming."""
_UNDER_WAY = 0.7
"""A wait of which such a part goes by while something is on the link."""
_MUCH = 1e6
"""Bytes a second; a link that is taken up and carries less is not full but long."""
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
class Case:
    """What is known of one job, and of its reader that waits most."""

    before: JobStatus
    job: JobStatus
    now: Snapshot
    between: Rates
    waiter: TrainerStatus | None = None

    @property
    def rates(self) -> JobRates:
        return self.between.job(self.job.name)

    def of(self, trainer: TrainerStatus) -> TrainerRates:
        return trainer_rates(self.rates, trainer.trainer_id)

    @property
    def wait(self) -> float:
        return (self.of(self.waiter).wait_share or 0.0) if self.waiter else 0.0

    @property
    def running(self) -> list[TaskStatus]:
        return [task for task in self.job.tasks if task.state == "running"]

    @property
    def workers(self) -> list[WorkerStatus]:
        """Those that produce for this job now."""
        names = {task.worker for task in self.running}
        return [worker for worker in self.now.workers if worker.name in names]

    @property
    def stages(self) -> list[tuple[StageStatus, StageRates]]:
        return list(zip(self.job.stages, self.rates.stages, strict=False))

    @property
    def busy(self) -> float:
        """The part of the time that the workers of the job work for it, on average."""
        return min(1.0, sum(stage.busy for _, stage in self.stages) / len(self.workers)) if self.workers else 0.0

    @property
    def demand(self) -> float:
        """Elements a second that its readers would take: of shared ones the fastest, of others all."""
        asked = [self.of(trainer).demand or 0.0 for trainer in self.job.trainers]
        return max(asked, default=0.0) if self.job.cached else sum(asked)


def who(case: Case, trainer: TrainerStatus) -> str:
    return f"{'trainer' if case.job.cached else 'client'} {trainer.trainer_id!r}"


# ---- causes


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
        cause="no workers", text="The service has no workers.", remedy=_more_workers(case, 2, "starts two workers")
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
    """Thread workers get their turn late, beside a reader that is busy itself."""
    threads = [worker for worker in case.workers or case.now.workers if worker.isolation == "thread"]
    its = [case.between.worker(worker.uid) for worker in threads]
    # Where the process itself does little, it is the machine that is busy.
    late = [worker.late_s for worker in its if worker.cpu > _AT_WORK]
    busy = max((case.of(trainer).own_share or 0.0 for trainer in case.job.trainers), default=0.0)
    if not late or median(late) < _LATE_S or busy < _OWN_LOOP:
        return None
    return Cause(
        cause="interpreter",
        text=f"The workers are threads of a process that holds the interpreter: they get their turn "
        f"{duration(median(late))} late on average, beside a loop that takes {share(busy)} of its time.",
        remedy='Process workers would not be held up: dsnb.start(isolation="process").',
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
    sent = next((case.between.worker(w.uid).sent_bytes for w in case.now.workers if w.name == name), 0.0)
    text = f"For {share(under_way)} of the time what it waits for is under way from worker {name}: the link carries "
    return Cause(
        cause="link", subject=name, text=f"{text}{size(sent)}/s.", remedy=_FULL_LINK if sent > _MUCH else _LONG_LINK
    )


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
    heaviest = max(case.stages, key=lambda pair: pair[1].busy, default=None)
    if heaviest is None or case.busy < BUSY:
        return None
    stage, its = heaviest
    part = its.busy / sum(rates.busy for _, rates in case.stages)
    if part < _HEAVY:
        return None
    cost = f": {duration(its.busy / its.elements)} for each element" if its.elements else ""
    return Cause(
        cause="operation",
        subject=stage.name,
        text=f"{stage.name} takes {share(part)} of the work of {plural(len(case.workers), 'worker')}{cost}.",
        remedy=f"Make it cheaper, let it run in parallel (num_parallel_calls=dsnb.AUTOTUNE), or have more workers: "
        f"{_more_workers(case, _enough_workers(case), 'would do')}",
    )


def _workers(case: Case) -> Cause | None:
    if case.busy < BUSY:
        return None
    enough = _enough_workers(case)
    return Cause(
        cause="workers",
        text=f"{plural(len(case.workers), 'worker').capitalize()} work {share(case.busy)} of the time and make "
        f"{rate(case.rates.produced)}; the readers could take {rate(case.demand)}, and no single operation stands out.",
        remedy=f"Have more workers: {_more_workers(case, enough, 'would do')}",
    )


def _between(case: Case) -> Cause:
    return Cause(
        cause="demand",
        text=f"The workers work only {share(case.busy)} of the time and the links are free: elements are not asked for "
        "in time.",
        remedy="Leave max_outstanding_requests out; batch before distribute; prefetch behind it.",
    )


CAUSES: tuple[Callable[[Case], Cause | None], ...] = (
    _no_workers,
    _holder,
    _interpreter,
    _link,
    decoding,
    _straggler,
    _operation,
    _workers,
    _between,
)


def _enough_workers(case: Case) -> int:
    """How many workers would make what is asked for, at the present pace of each."""
    here = max(1, len(case.workers))
    made = max(case.rates.produced, case.rates.consumed)
    return max(here + 1, ceil(here * case.demand / made)) if made else here + 1


def _more_workers(case: Case, enough: int, does: str) -> str:
    if case.now.scalable:
        return f"svc.scale({enough}) {does}."
    return f"{enough} {does} (`dsnb worker --dispatcher {case.now.target.removeprefix('grpc://')}` adds one)."
