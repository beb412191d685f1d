"""The points of the throughput figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dsnb.dashboard.feed import MAX_SAMPLES, Feed, RateSample
from dsnb.dashboard.view import Selection, view
from tests.dashboard.snapshots import SECOND, job, seen, snapshot, task, trainer
from tests.support.requires import require_module


@pytest.fixture
def chart() -> Any:
    require_module("bokeh")
    from dsnb.dashboard.panels import throughput

    return throughput


def moments(*heads: Sequence[int], wait: float = 0.0) -> tuple[RateSample, ...]:
    """Moments a second apart, with the heads of w0, w1 and so on."""
    snapshots = []
    for second, row in enumerate(heads):
        tasks = tuple(task(f"w{number}", head=head) for number, head in enumerate(row))
        reader = trainer(elements=sum(row), active_ns=second * SECOND, wait_ns=int(second * wait * SECOND))
        snapshots.append(snapshot(second + 1, jobs=(job(produced=sum(row), tasks=tasks, trainers=(reader,)),)))
    return seen(*snapshots).recent


def since(found: Sequence[RateSample]) -> Callable[[float], Sequence[RateSample]]:
    return lambda at: [moment for moment in found if moment.arrived_at >= at]


def test_bands_lie_one_on_the_other(chart: Any) -> None:
    found = moments([0, 0], [10, 5], [30, 10], wait=0.5)
    names = chart.bands(found, "train")
    rows = chart.points(found, "train", names)
    assert names == ("w0", "w1")
    assert rows["b0"] == [10, 20]
    assert rows["b1"] == rows["produced"] == [15, 25]
    assert rows["demand"] == [30, 50]


def test_more_workers_than_bands_share_the_last(chart: Any) -> None:
    found = moments([0] * 12, [1] * 12)
    names = chart.bands(found, "train")
    assert len(names) == len(chart.COLOURS)
    assert names[-1] == "others"
    assert chart.points(found, "train", names)["produced"] == [12]


def test_demand_far_above_does_not_flatten_the_rest(chart: Any) -> None:
    assert chart.scale_top({"produced": [100.0], "demand": [120.0]}) == 150
    assert chart.scale_top({"produced": [100.0], "demand": [9000.0]}) == 500
    assert chart.scale_top({"produced": [0.2], "demand": [math.nan]}) == 1


def test_only_new_points_are_streamed_and_another_job_begins_anew(chart: Any) -> None:
    one = chart.Chart()
    found = moments([0], [10], [30])
    one.update(seen(found[0].snapshot), since(found[:2]), 5.0)
    assert list(one.source.data["produced"]) == [10]
    one.update(seen(found[0].snapshot), since(found), 5.0)
    assert list(one.source.data["produced"]) == [10, 20]
    one.update(seen(snapshot(jobs=(job("other"),))), since(found), 5.0)
    assert list(one.source.data["produced"]) == [0, 0]


def test_a_page_that_stays_open_holds_no_more_than_the_ring() -> None:
    require_module("panel")
    from dsnb.dashboard.panels.throughput import Chart

    feed, chart = Feed(lambda _stop: iter(())), Chart()
    for seq in range(1, 4 * MAX_SAMPLES):
        feed.add(snapshot(seq, jobs=(job(produced=seq, tasks=(task(head=seq),)),)))
        if seq % 100 == 0:
            history = feed.since(0.0)
            chart.update(view(history, feed.health(), Selection()), feed.since, feed.now())
            assert len(history) <= MAX_SAMPLES
            assert {len(column) for column in chart.source.data.values()} == {min(seq - 1, MAX_SAMPLES)}


def test_times_that_would_run_into_one_another_are_left_out(chart: Any) -> None:
    from bokeh.models import NoOverlap

    assert isinstance(chart.Chart().figure.xaxis[0].major_label_policy, NoOverlap)
