"""Thread workers wait for the GIL together, so what each was measured to wait counts together."""

from __future__ import annotations

import pytest

from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import verdicts
from tests.dashboard.snapshots import SECOND, job, place, snapshot, stage, task, trainer, worker


def moment(second: int, late_ms: tuple[float, ...]) -> Snapshot:
    """A reader that waits for thread workers, each of which was measured once, to wake up so late, since second 0."""
    reader = trainer(
        elements=second, active_ns=second * SECOND, wait_ns=int(0.9 * second * SECOND), cursors=(place(offset=second),)
    )
    names = [f"w{at}" for at in range(len(late_ms))]
    found = job(
        trainers=(reader,),
        tasks=tuple(task(name, head=second) for name in names),
        stages=(stage("map(count)", elements=second, busy_ns=len(names) * second * SECOND),),
        produced=second,
    )
    workers = tuple(
        worker(
            name,
            isolation="thread",
            busy_ns=second * SECOND,
            cpu_ns=second * SECOND,
            clock_ns=second * SECOND,
            late_ns=int(late * 1e6) if second > 10 else 0,
            latency_samples=int(second > 10),
        )
        for name, late in zip(names, late_ms, strict=True)
    )
    return snapshot(second, jobs=(found,), workers=workers)


@pytest.mark.parametrize(
    "late_ms,cause",
    [((0.5, 1.0, 30.0), "interpreter"), ((12.0, 12.0, 12.0), "interpreter"), ((0.5, 1.0, 0.1), "operation")],
)
def test_two_workers_that_happened_to_get_it_at_once_do_not_hide_that_the_third_waited(
    late_ms: tuple[float, ...], cause: str
) -> None:
    (found,) = verdicts(moment(10, late_ms), moment(12, late_ms))
    assert found.cause == cause
