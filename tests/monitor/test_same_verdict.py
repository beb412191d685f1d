"""Page, `explain()`, `dsnb top` and report say the same verdict on a run, the right one, wherever the run is cut."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from dsnb.cli.top import screen_lines
from dsnb.dashboard.panels.verdict import job_verdicts
from dsnb.monitor.html_report import render_html_report
from dsnb.monitor.snapshot import CursorStatus, Snapshot
from dsnb.monitor.verdict import latest_verdicts
from dsnb.wire.messages import LinkReport
from tests.dashboard.snapshots import SECOND, job, place, seen, snapshot, stage, task, trainer, worker

READ_S = 30
"""The readers leave after so many seconds."""
CUTS = range(5, READ_S + 5)
"""Thirty cuts: some while the job is read, some after its end."""
SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "operation": {"wait": 0.8, "busy": 0.95},
    "link": {"wait": 0.8, "busy": 0.2, "in_flight": 1.0, "transfer": "grpc"},
    "interpreter": {"wait": 0.5, "busy": 0.9, "late_s": 0.02, "cpu": 1.0},
    "window": {"wait": 0.0, "busy": 0.5, "skips": 20},
    "none": {"wait": 0.0, "busy": 0.3},
}
"""By the cause of the verdict: what the readers and the worker do in each second."""


def moment(second: int, scenario: Mapping[str, Any]) -> Snapshot:
    """One second of a run with a fast trainer that reads 100 elements a second, and a slower one."""
    read = min(second, READ_S)
    present = second <= READ_S
    head = 100 * read
    fast = trainer(
        "fast",
        elements=head,
        clients=int(present),
        active_ns=read * SECOND,
        wait_ns=int(scenario["wait"] * read * SECOND),
        on_lag="skip",
        cursors=(
            CursorStatus(
                task_id="t-w0",
                worker="w0",
                offset=head,
                lag=0,
                in_flight_ns=int(scenario.get("in_flight", 0.0) * read * SECOND),
            ),
        ),
    )
    skipped = scenario.get("skips", 0) * read
    slow = trainer(
        "slow",
        elements=head - skipped,
        clients=int(present),
        active_ns=read * SECOND,
        skipped=skipped,
        on_lag="skip",
        cursors=(place(offset=head, lag=0),),
    )
    link = LinkReport(
        task_id="t-w0",
        worker="w0",
        trainer_id="fast",
        transfer=scenario.get("transfer", "local"),
        sent=head,
        frame_slices=max(1, head // 8),
    )
    found = job(
        trainers=(fast, slow),
        state="running" if present else "idle",
        clients=2 * int(present),
        produced=head,
        consumed=2 * head,
        links=(link,),
        tasks=(task(head=head, tail=max(0, head - 500), capacity_bytes=1_000_000, window_bytes=900_000),),
        stages=(stage("map(decode)", elements=head, busy_ns=int(scenario["busy"] * read * SECOND)),),
    )
    one = worker(
        busy_ns=int(scenario["busy"] * read * SECOND),
        clock_ns=second * SECOND,
        cpu_ns=int(scenario.get("cpu", 0.2) * second * SECOND),
        cpus=8,
        idle_ns=6 * second * SECOND,
        late_ns=int(scenario.get("late_s", 0.0) * 10 * second * SECOND),
        latency_samples=10 * second,
        sent_elements=head,
        sent_bytes=head * 50_000,
    )
    return snapshot(second, jobs=(found,), workers=(one,))


@pytest.mark.parametrize("cause", SCENARIOS)
def test_all_places_say_the_right_verdict_wherever_the_run_is_cut(cause: str) -> None:
    run = [moment(second, SCENARIOS[cause]) for second in range(1, CUTS[-1] + 1)]
    for cut in CUTS:
        until = run[:cut]
        told = latest_verdicts(until)
        assert told[0].cause == cause, (cut, told)
        assert list(job_verdicts(seen(*until))) == list(told[:3])
        screen = " ".join(line.strip() for line in screen_lines(until, 1000))
        report = render_html_report(until, told)
        for verdict in told:
            assert verdict.text in screen
            assert verdict.text.replace("'", "&#x27;") in report
        if cut <= READ_S:  # `svc.explain()` looks at the service now, for two seconds
            assert latest_verdicts([run[cut - 3], run[cut - 1]])[0].cause == cause


def test_no_snapshot_of_a_healthy_run_predicts_a_loss() -> None:
    """Trainers that keep up, whose lag moves by what is on its way to them: a thousand snapshots of fifty runs."""
    snapshots = 0
    for seed in range(50):
        draw = random.Random(seed)
        run = [healthy_moment(second, draw) for second in range(1, 31)]
        for cut in range(11, 31):
            snapshots += 1
            assert [one for one in latest_verdicts(run[:cut]) if one.cause == "window"] == []
    assert snapshots == 1_000


def healthy_moment(second: int, draw: random.Random) -> Snapshot:
    """A worker of this run sees a lag that grows by chance, and estimates from it that eviction is near."""
    head, frame = 1_000 * second, draw.choice([1, 4, 16])
    lags = [draw.randint(0, frame) for _ in range(3)]
    trainers = tuple(
        trainer(
            f"t{at}",
            elements=head - lag,
            active_ns=second * SECOND,
            wait_ns=int(draw.choice([0.0, 0.01, 0.4]) * SECOND) + second * SECOND // 100,
            on_lag="skip",
            eviction_in_s=draw.choice([0.0, 5.0, 30.0, 300.0]),
            cursors=(place(offset=head - lag, lag=lag),),
        )
        for at, lag in enumerate(lags)
    )
    links = tuple(
        LinkReport(task_id="t-w0", worker="w0", trainer_id=one.trainer_id, sent=16 * head, frame_slices=head)
        for one in trainers
    )
    window = task(head=head, tail=max(0, head - 2_000), capacity_bytes=1 << 20, window_bytes=1 << 20)
    jobs = (job(trainers=trainers, tasks=(window,), links=links, produced=head, consumed=3 * head),)
    return snapshot(second, jobs=jobs, workers=(worker(),))
