"""What a page shows by itself, and after a pick."""

from __future__ import annotations

from dsnb.dashboard.view import Selection, choose_job, colour_class
from tests.dashboard.snapshots import job, seen, snapshot, trainer


def test_a_running_job_is_shown_before_a_finished_one() -> None:
    jobs = (job("old", state="finished"), job("now"), job("later"))
    assert choose_job(snapshot(jobs=jobs), "") == jobs[1]


def test_the_newest_job_is_shown_when_none_runs() -> None:
    jobs = (job("old", state="finished"), job("new", state="idle"))
    assert choose_job(snapshot(jobs=jobs), "") == jobs[1]


def test_the_picked_job_is_shown_while_it_lives() -> None:
    jobs = (job("a"), job("b"))
    assert choose_job(snapshot(jobs=jobs), "b") == jobs[1]
    assert choose_job(snapshot(jobs=jobs[:1]), "b") == jobs[0]
    assert choose_job(snapshot(), "b") is None


def test_another_job_has_other_tasks() -> None:
    choice = Selection().with_pick("task", "t-w1").with_pick("span", "300").with_pick("job", "b")
    assert choice == Selection(job="b", task="", span_s=300)


def test_what_is_no_choice_changes_nothing() -> None:
    assert Selection().with_pick("span", "7").with_pick("colour", "red") == Selection()


def test_a_silent_service_has_no_rates() -> None:
    before, after = snapshot(1, jobs=(job(),)), snapshot(2, jobs=(job(produced=10),))
    assert seen(before, after).job_rates.produced == 10
    assert seen(before, after, age_s=60).job_rates.produced == 0


def test_a_trainer_keeps_its_colour() -> None:
    many = job(trainers=tuple(trainer(f"t{number}") for number in range(8)))
    assert [colour_class(many, name) for name in ("t0", "t5", "t6", "nobody")] == ["t0", "t5", "t0", "t0"]
