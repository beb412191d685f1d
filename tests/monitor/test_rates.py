"""What two snapshots say about the time between them."""

from __future__ import annotations

import pytest

from dsnb.monitor.rates import demand_text, rates
from dsnb.monitor.snapshot import CursorStatus
from tests.dashboard.snapshots import SECOND, job, place, snapshot, stage, task, trainer, worker


def test_a_rate_is_a_difference_over_the_services_own_clock() -> None:
    before = snapshot(1, time=10.0, jobs=(job(produced=100, consumed=150),))
    after = snapshot(2, time=12.0, jobs=(job(produced=300, consumed=550),))
    found = rates(before, after).job("train")
    assert (found.produced, found.consumed) == (100.0, 200.0)


def test_two_runs_of_a_service_have_no_rates() -> None:
    found = rates(snapshot(5, started=1.0, jobs=(job(produced=9),)), snapshot(6, started=2.0, jobs=(job(produced=99),)))
    assert found.span_s == 0
    assert found.job("train").produced == 0


def test_snapshots_out_of_order_have_no_rates() -> None:
    assert rates(snapshot(2), snapshot(1)).span_s == 0


def test_a_counter_that_went_back_counts_from_zero() -> None:
    before = snapshot(1, workers=(worker(produced=500),))
    after = snapshot(2, workers=(worker(produced=20),))
    assert rates(before, after).worker("u-w0").produced == 20


def test_a_worker_is_as_busy_as_its_own_clock_says() -> None:
    """Its report is older than the snapshot, now more and now less: one thread is busy for a second in one."""
    before = snapshot(1, time=10.00, workers=(worker(busy_ns=SECOND, clock_ns=5 * SECOND),))
    after = snapshot(2, time=10.99, workers=(worker(busy_ns=2 * SECOND, clock_ns=6 * SECOND),))
    assert rates(before, after).worker("u-w0").busy == 1.0


def test_each_worker_is_credited_with_its_own_tasks() -> None:
    before = snapshot(1, jobs=(job(tasks=(task("w0", head=10), task("w1", head=10))),))
    after = snapshot(2, jobs=(job(tasks=(task("w0", head=40), task("w1", head=15))),))
    assert rates(before, after).job("train").by_worker == {"w0": 30.0, "w1": 5.0}


def test_a_task_that_began_again_counts_from_its_head() -> None:
    before = snapshot(1, jobs=(job(tasks=(task(head=100),)),))
    after = snapshot(2, jobs=(job(tasks=(task(head=120, incarnation=2),)),))
    assert rates(before, after).job("train").by_worker == {"w0": 120.0}


def test_demand_is_what_a_trainer_would_take_if_it_never_waited() -> None:
    before = snapshot(1, jobs=(job(trainers=(trainer(active_ns=0),)),))
    after = snapshot(2, jobs=(job(trainers=(trainer(elements=80, wait_ns=SECOND // 5, active_ns=SECOND),)),))
    found = rates(before, after).job("train")
    assert found.trainers["a"].wait_share == pytest.approx(0.2)
    assert found.demand == pytest.approx(100)


def test_no_more_than_fourfold_is_claimed_of_a_trainer_that_always_waits() -> None:
    before = snapshot(1, jobs=(job(trainers=(trainer(),)),))
    after = snapshot(2, jobs=(job(trainers=(trainer(elements=10, wait_ns=SECOND, active_ns=SECOND),)),))
    found = rates(before, after).job("train")
    assert found.demand == pytest.approx(40)
    assert found.fastest_trainer is not None
    assert demand_text(found.fastest_trainer) == "40/s or more"


def test_a_trainer_that_does_not_read_has_neither_wait_nor_demand() -> None:
    still = job(trainers=(trainer(elements=10, active_ns=SECOND),))
    found = rates(snapshot(1, jobs=(still,)), snapshot(2, jobs=(still,))).job("train")
    assert found.trainers["a"].wait_share is None
    assert found.demand is None


def test_drift_is_how_fast_a_trainer_falls_behind() -> None:
    before = snapshot(1, jobs=(job(trainers=(trainer(cursors=(place(lag=5),)),)),))
    after = snapshot(2, jobs=(job(trainers=(trainer(cursors=(place(lag=12), place("w1", lag=3))),)),))
    assert rates(before, after).job("train").trainers["a"].drift == {"t-w0": 7.0}


def test_stages_are_told_apart_by_their_place() -> None:
    before = (stage("map", depth=0, busy_ns=0), stage("map", depth=1, busy_ns=SECOND))
    after = (stage("map", depth=0, busy_ns=SECOND // 2), stage("map", depth=1, busy_ns=SECOND))
    found = rates(snapshot(1, jobs=(job(stages=before),)), snapshot(2, jobs=(job(stages=after),)))
    assert [one.busy for one in found.job("train").stages] == [0.5, 0.0]


def test_what_was_under_way_to_a_reader_that_left_meanwhile_is_a_share_of_its_own_time() -> None:
    """It was there for the first of four seconds, and waited for what was under way all that time."""
    before, after = (
        trainer(
            active_ns=seconds * SECOND,
            cursors=(CursorStatus(task_id="t", worker="w0", offset=0, lag=0, in_flight_ns=seconds * SECOND),),
        )
        for seconds in (5, 6)
    )
    found = rates(snapshot(1, jobs=(job(trainers=(before,)),)), snapshot(5, jobs=(job(trainers=(after,)),)))
    assert found.job("train").trainers["a"].in_flight_share == {"t": 1.0}
