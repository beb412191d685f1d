"""What a page shows by itself, and after a pick."""

from __future__ import annotations

from dsnb.dashboard.feed import FeedHealth
from dsnb.dashboard.view import Selection, TrainerOrder, View, choose_job, view
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
    found = seen(snapshot(jobs=(many,)))
    assert [found.colour_class(name) for name in ("t0", "t5", "t6", "nobody")] == ["t0", "t5", "t0", "t0"]


def test_colours_and_rows_belong_to_a_trainer_for_the_life_of_its_job() -> None:
    order = TrainerOrder()

    def page(*ids: str) -> View:
        now = snapshot(jobs=(job(trainers=tuple(trainer(name) for name in ids)),))
        samples = seen(now).history
        return view(samples, FeedHealth(age_s=0.1), Selection(), trainer_order=order)

    page("a", "b", "c")
    after = page("new", "c", "b")  # a has left, and the service lists the others in another order

    assert [after.colour_class(name) for name in ("b", "c", "new")] == ["t1", "t2", "t3"]
    assert after.job is not None
    assert [one.trainer_id for one in after.job.trainers] == ["b", "c", "new"]
