"""Compares what users received with what the service promises.

`promises` says what must hold for one kind of fault; the rules here hold for all schedules.
"""

from __future__ import annotations

from collections import Counter

from dsnb.client.options import ShardingPolicy
from tests.simulation.client import SimClient
from tests.simulation.plan import Fault, Plan
from tests.simulation.promises import promise_of
from tests.simulation.service import Service


def check(service: Service) -> None:
    """Check the history of a simulation.

    Raises:
        AssertionError: a promise was broken.
    """
    _check_numbering(service)
    if service.plan.cached:
        groups: dict[tuple[str, int], list[SimClient]] = {}
        for client in service.clients:
            groups.setdefault((client.options.trainer_id, client.iteration), []).append(client)
        for clients in groups.values():
            _check_trainer(service, clients)
    elif service.plan.mode is ShardingPolicy.OFF:
        _check_whole_passes(service)
    else:
        _check_one_pass(service)


def _check_numbering(service: Service) -> None:
    """All clients see the same element at the same place of a task's sequence."""
    seen: dict[tuple[str, int, int], int] = {}
    for client in service.clients:
        for one in client.history:
            place = (one.task_id, one.incarnation, one.index)
            assert seen.setdefault(place, one.element) == one.element, f"two elements are number {place}"


def _check_one_pass(service: Service) -> None:
    """Each element comes once, over all clients; what is missing is reported, what is repeated can be explained."""
    received = Counter(element for client in service.clients for element in client.consumed)
    expected = Counter(service.plan.expected())
    missing, repeated = expected - received, received - expected
    _check_promise(service.plan, missing, repeated)
    _check_losses(service, missing.total())
    allowed = Counter[int]()
    for client in filter(_was_lost, service.clients):
        allowed.update(client.consumed)
    if not _worker_or_dispatcher_failed(service.plan) and not service.plan.faults & {
        Fault.SUSPEND_CLIENT,
        Fault.PARTITION_CLIENT,
    }:
        allowed = Counter(service.unacknowledged) if not any(client.rejoined for client in service.clients) else allowed
    assert not repeated - allowed, f"elements came twice: {sorted((repeated - allowed).elements())}"


def _check_promise(plan: Plan, missing: Counter[int], repeated: Counter[int], trainer: int = 0) -> None:
    """What `promises` declares for a plan's only kind of fault."""
    promise = promise_of(plan, trainer)
    assert promise.missing or not missing, f"elements are missing: {sorted(missing.elements())}"
    assert promise.may_repeat or not repeated, f"elements came twice: {sorted(repeated.elements())}"


_FAULTS_OF_CLIENTS = {
    Fault.CONNECTION, Fault.KILL_CLIENT, Fault.SUSPEND_CLIENT, Fault.PARTITION_CLIENT, Fault.ADD_WORKER,
}  # fmt: skip


def _was_lost(client: SimClient) -> bool:
    """Whether a client counted as lost at some time: what it consumed last may come to others again."""
    return not client.over or client.rejoined or client.unheard


def _worker_or_dispatcher_failed(plan: Plan) -> bool:
    return bool(plan.faults - _FAULTS_OF_CLIENTS)


def _check_losses(service: Service, missing: int) -> None:
    """The reported losses are exactly what did not arrive."""
    losses = service.dispatcher.losses
    known = sum(max(0, loss.elements) for loss in losses)
    unknown = any(loss.elements < 0 for loss in losses)
    assert known <= missing, f"{known} elements are reported as lost, and {missing} are missing"
    if not unknown:
        assert known == missing, f"{missing} elements are missing, and {known} are reported as lost"


def _check_trainer(service: Service, clients: list[SimClient]) -> None:
    """A trainer receives each element of the epoch once, unless it chose to skip, or a loss is reported.

    A trainer may have several clients, one after another. What a dead one consumed last may come to its successor.
    """
    trainer_id = clients[0].options.trainer_id
    if not any(client.over for client in clients):
        return
    expected = Counter(service.plan.expected())
    received = Counter(element for client in clients for element in client.consumed)
    allowed = Counter(element for client in filter(_was_lost, clients) for element in client.consumed)
    trainer = int(trainer_id.removeprefix("trainer"))
    _check_promise(service.plan, expected - received, received - expected, trainer)
    repeated = received - expected - allowed
    assert not repeated, f"{trainer_id} received elements twice: {sorted(repeated)}"
    _check_skipped(service, clients, (expected - received).total())


_CHANGE_COUNTS = {
    Fault.KILL_DISPATCHER,
    Fault.DISK_FULL,
    Fault.KILL_CLIENT,
}
"""Faults after which a status may lack what a process had counted."""


def _check_skipped(service: Service, clients: list[SimClient], missing: int) -> None:
    """What a trainer skipped is counted: exactly, unless the process that counted it was lost."""
    trainer_id, dispatcher = clients[0].options.trainer_id, service.dispatcher
    policy = clients[0].options.cache_policy
    assert policy is not None
    status = dispatcher.service.status(request_reports=False)
    skipped = sum(one.skipped for job in status.jobs for one in job.trainers if one.trainer_id == trainer_id)
    if dispatcher.losses:
        return
    announced = any("begins to lose data" in text and trainer_id in text for text in dispatcher.announced)
    if policy.on_lag == "skip":  # it begins at the oldest element that is kept; what came before is not for it
        if not service.plan.faults & _CHANGE_COUNTS:
            assert skipped <= missing, f"{trainer_id} misses {missing} elements, and {skipped} are counted"
        return
    if not service.plan.faults & _CHANGE_COUNTS:
        assert skipped == missing, f"{trainer_id} misses {missing} elements, and {skipped} are counted"
    assert not missing or skipped or announced, f"{trainer_id} misses {missing} elements, unreported"


def _check_whole_passes(service: Service) -> None:
    """Each task is a whole pass over the dataset, each element once; what is missing is reported."""
    tasks: dict[str, Counter[int]] = {}
    for client in service.clients:
        for one in client.history:
            tasks.setdefault(one.task_id, Counter())[one.element] += 1
    expected = Counter(service.plan.expected())
    reported = {loss.task_id for loss in service.dispatcher.losses}
    clean = not any(map(_was_lost, service.clients))
    for task_id, received in tasks.items():
        if task_id in reported:
            assert promise_of(service.plan).missing, f"a loss of task {task_id} is reported"
            continue  # it may have begun again
        _check_promise(service.plan, expected - received, received - expected)
        assert not expected - received, f"task {task_id} misses {sorted(expected - received)}, and nothing is reported"
        if clean:
            assert not received - expected, f"task {task_id} gave elements twice: {sorted(received - expected)}"
