"""Where trainers stand in the cache window."""

from __future__ import annotations

from typing import Any

import pytest

from dsnb.dashboard.panels.cache_lanes import eviction_lag_of, layout, newest_tasks, round_up, slope
from dsnb.dashboard.view import Selection, View
from dsnb.monitor.snapshot import JobStatus, TaskStatus
from tests.dashboard.snapshots import job, place, seen, snapshot, task, trainer

FULL: dict[str, Any] = {"window_bytes": 1000, "capacity_bytes": 1000}


def shown(*jobs: JobStatus, choice: Selection | None = None) -> tuple[View, JobStatus]:
    view = seen(*(snapshot(seq, jobs=(one,)) for seq, one in enumerate(jobs, start=1)), choice=choice)
    assert view.job is not None
    return view, view.job


@pytest.mark.parametrize(
    "one, cliff",
    [
        (None, None),
        (task(head=0), None),
        (task(head=100, tail=0), None),  # nobody knows yet how many will fit
        (task(head=100, tail=40, evicted=40), 60),
        (task(head=100, tail=0, window_bytes=250, capacity_bytes=1000), 400),
        (task(head=500, tail=400, evicted=400, **FULL), 100),
    ],
)
def test_the_cliff_follows_from_what_an_element_weighs(one: TaskStatus | None, cliff: int | None) -> None:
    assert eviction_lag_of(one) == cliff


def test_scales_step_in_round_numbers() -> None:
    assert [round_up(number) for number in (0, 1, 3, 16, 21, 120, 501)] == [1, 1, 5, 20, 50, 200, 1000]


def test_a_trainer_is_shown_where_it_has_least_room() -> None:
    tasks = (task("w0", head=300, tail=200, **FULL), task("w1", head=300, tail=100, **FULL))
    one = trainer(cursors=(place("w0", lag=90), place("w1", lag=120)))
    lane = layout(*shown(job(tasks=tasks, trainers=(one,)))).lanes[0]
    assert (lane.worker, lane.lag, lane.eviction_lag, lane.level) == ("w0", 90, 100, "warn")


def test_a_picked_task_shows_each_trainer_there() -> None:
    tasks = (task("w0", head=300, tail=200, **FULL), task("w1", head=300, tail=100, **FULL))
    one = trainer(cursors=(place("w0", lag=90), place("w1", lag=120)))
    lanes = layout(*shown(job(tasks=tasks, trainers=(one,)), choice=Selection(task="t-w1"))).lanes
    assert [(lane.worker, lane.status_text) for lane in lanes] == [("w1", "120 behind on w1, 210 in all")]


def test_a_trainer_that_a_person_evicted_is_said_to_be_evicted_by_whom_and_not_to_lose_data() -> None:
    def at(skipped: int) -> JobStatus:
        one = trainer(skipped=skipped, cursors=(place(lag=100),), evicted_by="svc.evict() of anna")
        return job(tasks=(task(head=300, tail=200, **FULL),), trainers=(one,))

    lane = layout(*shown(at(0), at(50))).lanes[0]
    assert lane.level != "bad"
    assert (lane.status_text, lane.forecast) == ("evicted by svc.evict() of anna", "skipped 50 before")


def test_who_loses_data_is_told_in_words() -> None:
    def at(skipped: int) -> JobStatus:
        one = trainer(skipped=skipped, cursors=(place(lag=100),))
        return job(tasks=(task(head=300, tail=200, **FULL),), trainers=(one,))

    lane = layout(*shown(at(90), at(97))).lanes[0]
    assert (lane.level, lane.status_text) == ("bad", "LOSING DATA, skipped 97")
    lane = layout(*shown(at(97), at(97))).lanes[0]
    assert (lane.level, lane.status_text, lane.forecast) == ("warn", "100 behind", "keeps up · skipped 97 before")


def test_who_will_fall_off_is_told_when() -> None:
    def at(lag: int) -> JobStatus:
        return job(tasks=(task(head=300, tail=200, **FULL),), trainers=(trainer(cursors=(place(lag=lag),)),))

    def told(*lags: int) -> tuple[str, str, str]:
        lane = layout(*shown(*map(at, lags))).lanes[0]
        return lane.status_text, lane.forecast, lane.direction

    assert told(40, 50) == ("50 behind", "loses data in 5.0 s", "left")
    assert told(50, 40) == ("40 behind", "catching up, 10/s", "right")
    assert told(40, 40) == ("40 behind", "keeps up", "")
    assert told(0, 0) == ("up to date", "", "")


@pytest.mark.parametrize("lags", [(40, 50), (50, 40)])
def test_of_a_trainer_that_left_it_is_not_said_where_it_is_heading(lags: tuple[int, int]) -> None:
    def at(lag: int) -> JobStatus:
        one = trainer(cursors=(place(lag=lag),), clients=0, elements=10)
        return job(tasks=(task(head=300, tail=200, **FULL),), trainers=(one,))

    lane = layout(*shown(*map(at, lags))).lanes[0]
    assert (lane.status_text, lane.forecast, lane.direction) == (f"{lags[-1]} behind", "", "")


@pytest.mark.parametrize("on_lag, fate", [("wait", "others wait for it in 5.0 s"), ("spill", "goes to disk in 5.0 s")])
def test_what_happens_at_the_cliff_is_what_the_trainer_asked_for(on_lag: str, fate: str) -> None:
    def at(lag: int) -> JobStatus:
        one = trainer(cursors=(place(lag=lag),), on_lag=on_lag)
        return job(tasks=(task(head=300, tail=200, **FULL),), trainers=(one,))

    assert layout(*shown(at(40), at(50))).lanes[0].forecast == fate


def test_what_is_on_disk_lies_beyond_the_cliff_and_leaves_the_window_its_room() -> None:
    def at(lag: int) -> JobStatus:
        deep = trainer("deep", cursors=(place(lag=lag),), on_lag="spill")
        near = trainer("near", cursors=(place(lag=50),), skipped=1)
        return job(tasks=(task(head=9000, tail=8900, **FULL),), trainers=(deep, near))

    picture = layout(*shown(at(150)))
    deep, near = picture.lanes
    assert (deep.level, deep.forecast, deep.reads_own_buffer) == ("good", "50 of them on disk", False)
    assert picture.distance(near.drawn_lag) < picture.distance(100) < picture.distance(deep.drawn_lag) < 1
    further = layout(*shown(at(8000)))
    assert further.distance(100) == picture.distance(100)
    assert picture.distance(150) < further.distance(further.lanes[0].drawn_lag) < 1


def test_a_drift_is_the_line_through_the_last_seconds() -> None:
    assert slope([]) == slope([(1.0, 5.0)]) == 0.0
    assert slope([(1.0, 5.0), (2.0, 8.0), (3.0, 11.0)]) == pytest.approx(3.0)
    assert slope([(1.0, 0.0), (2.0, 9.0), (3.0, 0.0), (4.0, 9.0)]) < 2.0, "the sawtooth of frames is no drift"


def test_the_cliff_is_on_the_scale_unless_all_are_far_from_it() -> None:
    def at(lag: int) -> JobStatus:
        return job(tasks=(task(head=3000, tail=2000, **FULL),), trainers=(trainer(cursors=(place(lag=lag),)),))

    assert layout(*shown(at(500))).scale == 1120
    assert layout(*shown(at(5))).scale == 20
    assert layout(*shown(at(500), at(5))).scale == 1120, "the scale remembers the last seconds"


def test_a_trainer_without_places_has_no_lane() -> None:
    assert layout(*shown(job(trainers=(trainer(),)))).lanes == ()


def test_each_worker_has_its_newest_task() -> None:
    tasks = (task("w10", iteration=1), task("w2", iteration=0), task("w2", iteration=1, head=5))
    assert [(one.worker, one.iteration) for one in newest_tasks(job(tasks=tasks))] == [("w2", 1), ("w10", 1)]


def test_who_reads_from_its_own_buffer_is_not_said_to_lose() -> None:
    def at(lag: int) -> JobStatus:
        return job(tasks=(task(head=3000, tail=2900, **FULL),), trainers=(trainer(cursors=(place(lag=lag),)),))

    lane = layout(*shown(at(700), at(900))).lanes[0]
    assert (lane.level, lane.lag, lane.drawn_lag) == ("good", 900, 100)
    assert (lane.status_text, lane.forecast) == ("900 behind", "reads from its own buffer")


def test_a_worker_that_has_just_joined_does_not_hide_where_trainers_stand() -> None:
    """Nothing is known of its window yet, and every trainer is up to date there."""
    full, new = task("w0", head=100, tail=0, window_bytes=1000, capacity_bytes=1000), task("w1")
    one = trainer(elements=40, cursors=(place("w0", offset=40, lag=60), place("w1")))
    (lane,) = layout(*shown(job(trainers=(one,), tasks=(full, new)))).lanes
    assert (lane.worker, lane.lag) == ("w0", 60)
