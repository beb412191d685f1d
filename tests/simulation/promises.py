"""What dsnb promises for each way to read and each fault alone: `checker` checks it, `docs/reliability.md` shows it.

Several kinds of faults at once are checked too, but only against the rules in `checker`, which hold for all schedules.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from dsnb.client.options import ShardingPolicy
from dsnb.dispatcher.handlers.reassignment import MAX_WORKER_DEATHS
from tests.simulation.plan import Fault, Plan


class Reading(Enum):
    """Ways to read a dataset, as far as the promises differ."""

    DYNAMIC = "`DYNAMIC`"
    SHARDS = "`FILE`, `DATA`, `FILE_OR_DATA`, `HINT`"
    OFF = "`OFF`"
    LOSSLESS_CACHE = '`CrossTrainerCache` with `on_lag="wait"` or `"spill"`'
    SKIPPING_CACHE = '`CrossTrainerCache` with `on_lag="skip"`'


class Promise(msgspec.Struct, frozen=True):
    """What holds for every schedule with faults of one kind."""

    missing: str = ""
    """Which elements may be missing, as a clause; empty if none may."""
    may_repeat: bool = False
    """Whether the last elements that a client consumed may come again, to another client."""

    @property
    def text(self) -> str:
        """The promise, for a table."""
        repeated = "the client's last elements may come again" if self.may_repeat else ""
        return "; ".join(filter(None, (self.missing, repeated))) or "each element once"


_WORKER_DEAD = {Fault.KILL_WORKER, Fault.SUSPEND_WORKER, Fault.PARTITION_WORKER}
"""Faults after which a worker counts as dead."""

_WORKER_GONE = {*_WORKER_DEAD, Fault.STOP_WORKER, Fault.DRAIN_WORKER}
"""Faults after which a worker no longer has its tasks."""

_CLIENT_GONE = {Fault.KILL_CLIENT, Fault.SUSPEND_CLIENT, Fault.PARTITION_CLIENT}
"""Faults after which a client no longer has its elements."""


_SKIPPED = "each element once, except what the trainer skips"


def promise(reading: Reading, fault: Fault) -> Promise:
    """What dsnb promises if faults of one kind happen, and no others."""
    missing = ""
    if reading is Reading.OFF and fault in _WORKER_GONE:
        missing = "the worker's part ends, or begins again if it returns, which is reported"
    elif reading is Reading.LOSSLESS_CACHE and fault in _CLIENT_GONE:
        missing = "the trainer misses what was evicted while it was away, which is reported"
    elif reading is Reading.SKIPPING_CACHE:
        missing = _SKIPPED
    return Promise(missing=missing, may_repeat=fault in _CLIENT_GONE)


def reading_of(plan: Plan, trainer: int = 0) -> Reading:
    """How a client of a plan reads.

    Args:
        plan: The plan.
        trainer: The number of the client's trainer, in the cross-trainer cache.
    """
    if plan.cached:
        return Reading.SKIPPING_CACHE if plan.on_lag[trainer] == "skip" else Reading.LOSSLESS_CACHE
    return {ShardingPolicy.DYNAMIC: Reading.DYNAMIC, ShardingPolicy.OFF: Reading.OFF}.get(plan.mode, Reading.SHARDS)


def promise_of(plan: Plan, trainer: int = 0) -> Promise:
    """What must hold for a plan: less than `promise` if its faults are of several kinds."""
    reading = reading_of(plan, trainer)
    if not plan.faults:
        return Promise(missing=_SKIPPED if reading is Reading.SKIPPING_CACHE else "")
    deaths = sum(event.fault in _WORKER_DEAD for event in plan.events)
    if len(plan.faults) > 1 or deaths >= MAX_WORKER_DEATHS:  # the task is given up then: its elements may kill workers
        return Promise(missing="elements may be missing", may_repeat=True)
    (fault,) = plan.faults
    return promise(reading, fault)
