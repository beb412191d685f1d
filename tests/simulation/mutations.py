"""Mutations of the protocol that the simulator must notice, each applied by patching dsnb in a process of its own.

python -m tests.simulation.mutations NAME SECONDS SEED     exits with 1 as soon as a simulation fails, else 0
"""

# ruff: noqa: SLF001 - a mutation changes what is private

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count

from dsnb.client.inbox import TaskRead
from dsnb.client.tasks import TaskTable
from dsnb.dispatcher import records as r
from dsnb.dispatcher import state
from dsnb.dispatcher.journal import Journal
from dsnb.errors import UnavailableError
from dsnb.wire.messages import TaskHolding, TaskInfo
from dsnb.worker.shared_log import SharedLog
from tests.simulation.__main__ import run_plan
from tests.simulation.plan import Fault, draw, draw_long


def acknowledge_early() -> None:
    """A client acknowledges elements when they arrive, before its user has them."""
    original = TaskTable._send_credit

    def send_credit(table: TaskTable, task_read: TaskRead, *, grant: bool = True) -> None:
        account = task_read.account
        consumed, account.consumed = account.consumed, account.received
        try:
            original(table, task_read, grant=grant)
        finally:
            account.consumed = consumed

    TaskTable._send_credit = send_credit  # type: ignore[method-assign]


def answer_before_commit() -> None:
    """The dispatcher answers and carries out decisions that its journal could not write."""
    original = Journal.append

    def append(journal: Journal, records: Iterable[r.Record]) -> None:
        with suppress(UnavailableError):
            original(journal, records)

    Journal.append = append  # type: ignore[method-assign]


def skip_incarnation() -> None:
    """A reassigned task keeps its incarnation, so nobody recognises what its old worker still says."""
    original = state._APPLY[r.TaskUnassigned]

    def unassigned(known: state.State, record: r.TaskUnassigned) -> None:
        task = known.tasks[record.task_id]
        before = task.incarnation
        original(known, record)
        task.incarnation = before

    state._APPLY[r.TaskUnassigned] = unassigned


def drop_hand_back() -> None:
    """What a client leaves unconsumed does not go to the others."""
    original = SharedLog.leave

    def leave(log: SharedLog, client: str, consumed: int | None = None) -> None:
        if client in log.readers:
            reader = log.readers[client]
            log._consume(reader, reader.sent)
        original(log, client, consumed)

    SharedLog.leave = leave  # type: ignore[method-assign]


def forget_fence() -> None:
    """A client that reports what it has of a task without a worker goes on taking what the old worker still sends."""
    original = TaskTable.fence

    def fence(table: TaskTable, halted: Sequence[TaskInfo]) -> tuple[TaskHolding, ...]:
        sinks = [sink for info in halted if (sink := table._sinks.get(info.task_id)) is not None and sink.current]
        holdings = original(table, halted)
        for sink in sinks:
            sink.current = True
        return holdings

    TaskTable.fence = fence  # type: ignore[method-assign]


MUTATIONS: dict[str, tuple[Callable[[], None], tuple[Fault, ...]]] = {
    "acknowledge_early": (acknowledge_early, tuple(Fault)),
    "answer_before_commit": (answer_before_commit, (Fault.DISK_FULL, Fault.KILL_DISPATCHER)),
    "skip_incarnation": (skip_incarnation, (Fault.PARTITION_WORKER, Fault.SUSPEND_WORKER, Fault.KILL_WORKER)),
    "drop_hand_back": (drop_hand_back, tuple(Fault)),
    "forget_fence": (forget_fence, (Fault.PARTITION_WORKER, Fault.SUSPEND_WORKER, Fault.STOP_WORKER)),
}
"""The mutations, each with the faults from which schedules are drawn."""

_LONG = {"forget_fence"}
"""The mutations that matter only while a worker and its successor deliver at the same time; see `draw_long`."""


def main(name: str, seconds: float, first: int) -> int:
    """Run simulations with a mutation until one fails or the time is up; returns the exit status."""
    mutate, faults = MUTATIONS[name]
    mutate()
    until = time.process_time() + seconds
    for seed in count(first):
        if time.process_time() > until:
            return 0
        try:
            run_plan(draw_long(seed, faults) if name in _LONG else draw(seed, faults))
        except Exception as error:  # noqa: BLE001 - whatever fails, the mutation was noticed
            sys.stdout.write(f"{name}: seed {seed}: {type(error).__name__}: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
