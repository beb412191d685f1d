"""Mutations of the protocol that the simulator must notice, each applied by patching a method in a process of its own.

python -m tests.simulation.mutations NAME SECONDS SEED     exits with 1 as soon as a simulation fails, else 0
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count

from dsnb.client.inbox import TaskRead, TaskSink
from dsnb.client.tasks import TaskTable
from dsnb.dispatcher import records as r
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.state import State
from dsnb.errors import UnavailableError
from dsnb.wire.messages import TaskHolding, TaskInfo
from dsnb.worker.shared_log import SharedLog
from tests.simulation.__main__ import run_plan
from tests.simulation.client import SimRead
from tests.simulation.plan import Fault, draw, draw_long


def acknowledge_early() -> None:
    """A client acknowledges elements when they arrive, before its user has them."""
    original = SimRead.credit

    def credit(
        read: SimRead, granted: int, _consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0
    ) -> None:
        original(read, granted, received, max_bytes, received, dequeued)

    SimRead.credit = credit  # type: ignore[method-assign]


def answer_before_commit() -> None:
    """The dispatcher answers and carries out decisions that its journal could not write."""
    original = Journal.append

    def append(journal: Journal, records: Iterable[r.Record]) -> None:
        with suppress(UnavailableError):
            original(journal, records)

    Journal.append = append  # type: ignore[method-assign]


def skip_incarnation() -> None:
    """A reassigned task keeps its incarnation, so nobody recognises what its old worker still says."""
    original = State.apply

    def apply(state: State, record: r.Record) -> None:
        task = state.tasks[record.task_id] if isinstance(record, r.TaskUnassigned) else None
        before = task.incarnation if task is not None else 0
        original(state, record)
        if task is not None:
            task.incarnation = before

    State.apply = apply  # type: ignore[method-assign]


def drop_hand_back() -> None:
    """What a client leaves unconsumed does not go to the others."""
    original = SharedLog.leave

    def leave(log: SharedLog, client: str, consumed: int | None = None) -> None:
        original(log, client, log.readers[client].sent if client in log.readers else consumed)

    SharedLog.leave = leave  # type: ignore[method-assign]


def forget_fence() -> None:
    """A client that reports what it has of a task without a worker goes on taking what the old worker still sends."""
    original, make_sink = TaskTable.fence, TaskRead.sink
    sinks: dict[TaskRead, TaskSink] = {}

    def sink(task_read: TaskRead) -> TaskSink:
        sinks[task_read] = made = make_sink(task_read)
        return made

    def fence(table: TaskTable, halted: Sequence[TaskInfo]) -> tuple[TaskHolding, ...]:
        reads = [table.reads[info.task_id] for info in halted if info.task_id in table.reads]
        current = [sinks[read] for read in reads if read in sinks and sinks[read].current]
        holdings = original(table, halted)
        for one in current:
            one.current = True
        return holdings

    TaskRead.sink = sink  # type: ignore[method-assign]
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
