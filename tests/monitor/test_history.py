from __future__ import annotations

from itertools import pairwise

from dsnb.monitor.history import TIERS, History, Tier, slim
from dsnb.monitor.snapshot import EventStatus, GrantStatus, JobStatus, Snapshot

DAY = 24 * 3600


def of_a_day(every_s: float = 0.5) -> History[float]:
    history = History[float]()
    for step in range(int(DAY / every_s)):
        history.add(step * every_s, step * every_s)
    return history


def test_a_day_at_two_a_second_takes_no_more_room_than_an_hour() -> None:
    history = of_a_day()
    assert len(history) < 800
    times = history.since(0.0)
    assert times == sorted(times)
    assert DAY - times[0] <= TIERS[-1].age_s + 1
    assert history.newest == times[-1]


def test_the_last_minutes_are_there_as_they_came_and_older_ones_thinner() -> None:
    times = of_a_day().since(0.0)
    gaps = [(DAY - later, later - earlier) for earlier, later in pairwise(times)]
    assert {gap for age, gap in gaps if age < 119} == {0.5}
    assert all(gap <= 2.5 for age, gap in gaps if age < 590)
    assert all(gap <= 10.5 for _, gap in gaps)


def test_what_is_younger_than_a_time_is_found_across_tiers() -> None:
    history = of_a_day()
    for since in (0.0, DAY - 3000.0, DAY - 300.0, DAY - 10.0, DAY + 1.0):
        assert history.since(since) == [at for at in history.since(0.0) if at > since]


def test_items_that_come_faster_than_thought_stay_within_bounds() -> None:
    history = History[int]((Tier(age_s=100.0),), most=10)
    for step in range(1000):
        history.add(step / 1000, step)
    assert history.since(0.0) == list(range(990, 1000))


def test_nothing_is_newest_in_a_history_that_was_cleared() -> None:
    history = of_a_day(60.0)
    history.clear()
    assert history.newest is None
    assert len(history) == 0


def test_a_slim_snapshot_lacks_only_what_is_long() -> None:
    grant = GrantStatus(
        worker="w0", task_id="4000", iteration=0, source=0, repetition=0, first=0, end=4, state="done", given=1.0
    )
    job = JobStatus(
        name="train", anonymous=False, dataset_id="1000", pipeline="range", mode="DYNAMIC", cached=False, iteration=0,
        state="running", clients=1, produced=3, consumed=2, grants=(grant,),
    )  # fmt: skip
    event = EventStatus(time=1.0, level="info", text="begun")
    whole = Snapshot(
        version=1, seq=1, time=2.0, service="s", target="grpc://h:1", started=0.0, jobs=(job,), events=(event,)
    )
    assert not slim(whole).jobs[0].grants
    assert not slim(whole).events
    assert slim(whole).jobs[0].produced == 3
