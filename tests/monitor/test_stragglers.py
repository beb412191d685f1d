"""A worker counts as slow only if it had the time to be fast."""

from __future__ import annotations

from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, verdicts
from tests.dashboard.snapshots import SECOND, job, place, snapshot, stage, task, trainer, worker


def moment(second: int, heads: tuple[int, int]) -> Snapshot:
    """A reader that waits 90 % of its time for two workers that work all the time."""
    reader = trainer(
        elements=sum(heads), active_ns=second * SECOND, wait_ns=int(0.9 * second * SECOND), cursors=(place(),)
    )
    busy = 2 * second * SECOND
    found = job(
        trainers=(reader,),
        tasks=tuple(task(f"w{at}", head=head) for at, head in enumerate(heads)),
        stages=(stage("map(fetch)", elements=sum(heads), busy_ns=busy),),
        produced=sum(heads),
    )
    workers = (worker("w0", busy_ns=second * SECOND), worker("w1", busy_ns=second * SECOND))
    return snapshot(second, jobs=(found,), workers=workers)


def verdict_after(heads: tuple[int, int]) -> Verdict:
    (found,) = verdicts(moment(10, heads), moment(20, (heads[0] + 500, heads[1] + 60)))
    return found


def test_a_worker_that_produces_a_tenth_of_the_other_is_named() -> None:
    assert (verdict_after((1000, 100)).cause, verdict_after((1000, 100)).subject) == ("worker", "w1")


def test_a_worker_that_joined_a_moment_ago_is_not_called_slow() -> None:
    assert verdict_after((1000, 0)).cause == "operation"
