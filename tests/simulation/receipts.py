"""Compares the receipt of an epoch with what users received."""

from __future__ import annotations

from collections import Counter

from dsnb.client.options import ShardingPolicy
from dsnb.dispatcher.handlers.receipts import receipt
from dsnb.elements.content_digest import digest_of
from dsnb.monitor.receipt import UNKNOWN, Receipt
from tests.simulation.client import SimClient
from tests.simulation.dispatcher import JOB
from tests.simulation.plan import Plan
from tests.simulation.service import Service
from tests.support.element_hash import element_hash


def check_receipt(service: Service) -> None:
    """Check that each receipt says what was received, or that it does not know.

    Raises:
        AssertionError: a number is wrong, or unknown without a reason.
    """
    core = service.dispatcher.core
    job = core.state.jobs.get(JOB)
    for number in [] if job is None else [*job.iterations, *job.receipts]:
        assert job is not None
        found = receipt(core, job, number)
        if found.over:
            clients = [client for client in service.clients if client.iteration == number]
            _check(service.plan, found, clients)


def _check(plan: Plan, found: Receipt, clients: list[SimClient]) -> None:
    if plan.cached:
        _check_trainers(plan, found, clients)
        return
    received = [element for client in clients for element in client.consumed]
    assert found.digest in ("", _digest(received)), f"the digest is of other elements: {found}"
    missing, twice = _differences(plan, found, clients)
    assert found.missing in (UNKNOWN, missing), f"{missing} elements are missing, and the receipt says: {found}"
    assert found.twice in (UNKNOWN, twice), f"{twice} elements came twice, and the receipt says: {found}"
    died = any(reader.state == "died" for reader in found.readers)
    if found.missing and all(part.exact for part in found.parts if part.missing) and not died:
        named = [number for part in found.parts for place in part.missing_at for number in _numbers_of(place)]
        _check_named(plan, named, clients)
    if not died and received:
        assert found.digest, f"no reader died, and there is no digest: {found}"
    if not died and not any(part.restarts for part in found.parts):
        assert found.twice != UNKNOWN, f"no reader died, and the receipt says: {found}"
    if not any(part.state == "lost" or part.restarts for part in found.parts):
        assert found.missing != UNKNOWN, f"no worker was lost, and the receipt says: {found}"


def _digest(elements: list[int]) -> str:
    return digest_of(map(element_hash, elements)).hex() if elements else ""


def _numbers_of(place: str) -> range:
    """The numbers that a receipt names, as in "splits 3 to 5 of range(40)"."""
    words = [int(word) for word in place.partition(" of ")[0].split() if word.isdigit()]
    return range(words[0], words[-1] + 1)


def _check_named(plan: Plan, named: list[int], clients: list[SimClient]) -> None:
    if plan.mode is ShardingPolicy.DYNAMIC and plan.pipeline == "range":
        missing = set(plan.expected()) - {element for client in clients for element in client.consumed}
        assert sorted(missing) == sorted(named), f"missing are {missing}, and the receipt says {named}"


def _differences(plan: Plan, found: Receipt, clients: list[SimClient]) -> tuple[int, int]:
    """How many elements are missing, and came twice."""
    expected = Counter(plan.expected())
    passes = [Counter(element for client in clients for element in client.consumed)]
    if plan.mode is ShardingPolicy.OFF:
        tasks = {part.task_id: Counter[int]() for part in found.parts}
        for client in clients:
            for one in client.history:
                tasks.setdefault(one.task_id, Counter())[one.element] += 1
        passes = list(tasks.values())
    missing = sum((expected - received).total() for received in passes)
    return missing, sum((received - expected).total() for received in passes)


def _check_trainers(plan: Plan, found: Receipt, clients: list[SimClient]) -> None:
    total = len(plan.expected())
    for reader in found.readers:
        elements = [e for client in clients if client.options.trainer_id == reader.reader for e in client.consumed]
        received = len(elements)
        assert reader.digest in ("", _digest(elements)), f"the digest of {reader.reader} is of other elements: {found}"
        assert reader.elements in (UNKNOWN, received), f"{reader.reader} received {received}: {found}"
        if reader.missing != UNKNOWN and plan.mode is not ShardingPolicy.OFF:
            assert reader.missing == max(0, total - received), f"{reader.reader} received {received}: {found}"
