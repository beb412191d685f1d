"""A job that ended keeps the verdict on the seconds in which it was read, wherever a run is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dsnb.cli.top import screen_lines
from dsnb.dashboard.panels.verdict import job_verdicts
from dsnb.monitor.formatting import format_time
from dsnb.monitor.html_report import render_html_report
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import latest_verdicts
from dsnb.notebook.explaining import explain_over
from tests.dashboard.snapshots import SECOND, job, place, seen, snapshot, stage, task, trainer, worker

READ_S = 30
"""The reader waits for nearly all of this time, and is gone afterwards."""


def moment(second: int, *, started: float = 0.0) -> Snapshot:
    """One second of a run whose reader waits 90 % of its time, and leaves."""
    read = min(second, READ_S)
    reader = trainer(
        elements=10 * read,
        active_ns=read * SECOND,
        wait_ns=int(0.9 * read * SECOND),
        clients=int(second <= READ_S),
        cursors=(place(offset=10 * read, lag=read),),
        eviction_in_s=20.0,
        on_lag="skip",
    )
    made = task(head=11 * read, tail=0, capacity_bytes=1000, window_bytes=900)
    state = "running" if second <= READ_S else "idle"
    jobs = (job(trainers=(reader,), tasks=(made,), state=state, clients=int(second <= READ_S), produced=11 * read),)
    return snapshot(second, jobs=jobs, workers=(worker(),), started=started)


def run_of(seconds: int) -> list[Snapshot]:
    return [moment(second) for second in range(1, seconds + 1)]


@pytest.mark.parametrize("seconds", [READ_S, READ_S + 1, READ_S + 60])
def test_page_top_and_report_say_of_a_run_what_limited_it_while_it_was_read(seconds: int) -> None:
    run = run_of(seconds)
    (found,) = latest_verdicts(run)
    assert (found.level, found.job) == ("bad", "train")
    assert "waits 90 % of its time" in found.text
    assert list(job_verdicts(seen(*run))) == [found]
    assert found.text in " ".join(line.strip() for line in screen_lines(run, 1000))
    assert found.text.replace("'", "&#x27;") in render_html_report(run, latest_verdicts(run))


def test_the_verdict_on_a_job_that_ended_says_when_that_was_and_predicts_nothing() -> None:
    (found,) = latest_verdicts(run_of(READ_S + 60))
    assert found.text.startswith(f"Last read at {format_time(READ_S)}: Job 'train' is input-bound")


def test_the_verdict_is_about_the_last_seconds_and_not_about_an_earlier_run() -> None:
    earlier: Sequence[Snapshot] = run_of(20)
    later = [moment(second, started=100.0) for second in range(21, READ_S)]
    (found,) = latest_verdicts([*earlier, *later])
    assert "Last read" not in found.text


def test_a_job_that_nobody_read_for_a_second_has_no_verdict() -> None:
    assert not latest_verdicts([])
    assert not latest_verdicts(run_of(1))


def after_the_end(**rest: Any) -> list[Snapshot]:
    """What somebody sees of the run above who comes after it."""
    run = [moment(second) for second in range(READ_S + 1, READ_S + 5)]
    return [replace(one, jobs=(replace(one.jobs[0], **rest),)) for one in run]


def test_of_a_run_that_nobody_watched_its_totals_say_what_limited_it_wherever_it_is_shown() -> None:
    stages = (stage("map(decode)", elements=300, busy_ns=27 * SECOND), stage("range", busy_ns=3 * SECOND))
    run = after_the_end(stages=stages)
    (found,) = latest_verdicts(run)
    assert (found.level, found.cause, found.subject) == ("bad", "ended", "a")
    assert found.text == (
        "Job 'train' is not read any more. It was input-bound: trainer 'a' waited 90 % of its 30 s. "
        "map(decode) took 90 % of the work: 90.0 ms for each element."
    )
    assert list(job_verdicts(seen(*run))) == [found]
    assert found.text in " ".join(line.strip() for line in screen_lines(run, 1000))
    assert found.text.replace("'", "&#x27;") in render_html_report(run, latest_verdicts(run))


def test_a_past_run_that_was_not_input_bound_gets_no_remedy() -> None:
    reader = trainer(clients=0, active_ns=30 * SECOND, wait_ns=SECOND // 10)
    (found,) = latest_verdicts(after_the_end(trainers=(reader,)))
    assert (found.level, found.remedy) == ("good", "")
    assert "was not input-bound" in found.text


def test_nothing_is_said_of_a_past_run_while_another_job_is_read() -> None:
    run = [replace(one, jobs=(*one.jobs, job("other"))) for one in after_the_end()]
    assert not [one for one in latest_verdicts(run) if one.cause == "ended"]
    assert [one.job for one in latest_verdicts(run, "train")] == ["train"]


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "not watched"])
def test_an_explanation_after_the_end_says_what_the_report_says(watched: bool) -> None:
    history = run_of(READ_S + 5) if watched else []
    later = iter([moment(READ_S + 6), moment(READ_S + 8)])
    told = explain_over(lambda: next(later), 0.0, lambda: history)
    assert list(told) == list(latest_verdicts([*history, moment(READ_S + 6), moment(READ_S + 8)]))
    assert "input-bound: trainer 'a' wait" in told[0].text


def test_an_explanation_of_what_is_read_is_about_the_present_alone() -> None:
    later = iter([moment(8), moment(10)])
    told = explain_over(lambda: next(later), 0.0, lambda: pytest.fail("the past was asked for"))
    assert list(told) == list(latest_verdicts([moment(8), moment(10)]))
