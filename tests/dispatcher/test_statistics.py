"""What was reported adds up, also when those who reported it are gone."""

from __future__ import annotations

from typing import Any

from dsnb.dispatcher.statistics import Statistics, stages_of
from dsnb.wire.messages import ClientReport, StageReport, TaskReport, TrainerReport, WorkerReport


def task(task_id: str, head: int, **changes: Any) -> TaskReport:
    return TaskReport(task_id=task_id, head=head, **{"state": "running", **changes})


def trainer(name: str, hits: int, misses: int = 0, skipped: int = 0) -> TrainerReport:
    return TrainerReport(trainer_id=name, hits=hits, misses=misses, skipped=skipped)


def stage(name: str, depth: int, elements: int, **changes: int) -> StageReport:
    return StageReport(name=name, depth=depth, elements=elements, **changes)


def worker(uid: str, *tasks: TaskReport) -> WorkerReport:
    return WorkerReport(uid=uid, tasks=tasks)


def ledger_of(**jobs: str) -> Statistics:
    """A ledger that expects these tasks of these jobs."""
    ledger = Statistics()
    for task_id, job in jobs.items():
        ledger.register_task(task_id, job)
    return ledger


def produced(ledger: Statistics, job: str) -> int:
    totals = ledger.job(job)
    return totals.produced + sum(report.head for report in totals.tasks.values())


def test_the_last_word_of_each_task_counts() -> None:
    ledger = ledger_of(t1="train", t2="train")
    ledger.worker_reported(worker("w1", task("t1", 10)))
    ledger.worker_reported(worker("w2", task("t2", 5)))
    ledger.worker_reported(worker("w1", task("t1", 12)))
    assert produced(ledger, "train") == 17


def test_what_a_worker_says_of_a_task_that_it_no_longer_has_does_not_count() -> None:
    """Its successor begins behind an earlier report, so it sends, or skips, the same elements."""
    ledger = ledger_of(t1="train")
    ledger.worker_reported(worker("w1", task("t1", 10, incarnation=1, trainers=(trainer("a", 3, 4, 1),))))
    late = worker("w1", task("t1", 18, incarnation=1, state="dropped", trainers=(trainer("a", 3, 4, 9),)))
    ledger.register_task("t1", "train", 10, 2)
    ledger.worker_reported(worker("w2", task("t1", 15, incarnation=2, trainers=(trainer("a", 2, 0, 2),))))
    assert ledger.worker_reported(late, lambda report: report.incarnation < 2) == []
    (now,) = ledger.job("train").tasks.values()
    assert now.incarnation == 2
    assert ledger.job("train").trainers["a"].skipped + sum(one.skipped for one in now.trainers) == 1 + 2
    assert ledger.job("train").all_produced() == 15


def test_nor_does_it_count_once_the_dispatcher_has_dropped_the_task() -> None:
    """The dispatcher no longer knows the task's incarnation then, and the last worker may not have reported yet."""
    ledger = ledger_of(t1="train")
    ledger.worker_reported(worker("w1", task("t1", 10, incarnation=1, trainers=(trainer("a", 3, 4, 1),))))
    ledger.register_task("t1", "train", 10, 2)
    late = worker("w1", task("t1", 18, incarnation=1, state="dropped", trainers=(trainer("a", 3, 4, 9),)))
    assert ledger.worker_reported(late) == []
    ledger.worker_reported(worker("w2", task("t1", 15, incarnation=2, trainers=(trainer("a", 2, 0, 2),))))
    ledger.task_gone("t1")
    assert ledger.job("train").trainers["a"].skipped == 1 + 2
    assert ledger.job("train").all_produced() == 15


def test_counters_only_grow_when_a_worker_is_gone() -> None:
    ledger = ledger_of(t1="train", t2="train")
    ledger.worker_reported(worker("w1", task("t1", 10, trainers=(trainer("a", 3, 4, 1),))))
    ledger.worker_reported(worker("w2", task("t2", 5, trainers=(trainer("a", 2),))))
    ledger.worker_gone("w1")
    ledger.worker_gone("w1")
    assert produced(ledger, "train") == 15
    totals = ledger.job("train").trainers["a"]
    assert (totals.hits, totals.misses, totals.skipped) == (3, 4, 1)
    assert list(ledger.workers) == ["w2"]


def test_a_dropped_task_counts_with_its_last_report_and_once() -> None:
    ledger = ledger_of(t1="train")
    ledger.worker_reported(worker("w1", task("t1", 10)))
    ledger.worker_reported(worker("w1", task("t1", 14, state="dropped")))
    ledger.worker_reported(worker("w1", task("t1", 14)))
    ledger.task_gone("t1")
    assert produced(ledger, "train") == 14


def test_the_totals_of_a_worker_do_not_fall_when_its_tasks_end() -> None:
    ledger = ledger_of(t1="train", t2="train")
    busy = (stage("map", 0, 10, busy_ns=7),)
    ledger.worker_reported(worker("w1", task("t1", 10, sent_elements=8, sent_bytes=80, errors=1, stages=busy)))
    ledger.worker_reported(
        worker("w1", task("t1", 14, sent_elements=9, sent_bytes=90, errors=1, stages=busy), task("t2", 3))
    )
    ledger.worker_reported(worker("w1", task("t1", 15, sent_elements=9, sent_bytes=90, errors=2, state="dropped")))
    ledger.worker_reported(worker("w1"))
    totals = ledger.worker_totals("w1")
    assert (totals.produced, totals.sent_elements, totals.sent_bytes, totals.errors) == (18, 9, 90, 2)
    assert totals.busy_ns == 7


def test_a_worker_that_takes_a_task_over_has_produced_only_what_came_after() -> None:
    ledger = Statistics()
    ledger.register_task("t1", "train", first_index=100)
    ledger.worker_reported(worker("w2", task("t1", 104)))
    ledger.worker_reported(worker("w2", task("t1", 110)))
    assert ledger.worker_totals("w2").produced == 10


def test_the_totals_of_a_worker_go_with_it() -> None:
    ledger = ledger_of(t1="train")
    ledger.worker_reported(worker("w1", task("t1", 10)))
    ledger.worker_gone("w1")
    assert ledger.worker_totals("w1").produced == 0


def test_a_task_that_was_never_reported_is_nothing() -> None:
    ledger = ledger_of(t1="train")
    ledger.task_gone("t1")
    ledger.task_gone("unknown")
    ledger.worker_gone("unknown")
    assert produced(ledger, "train") == 0


def test_a_report_of_a_task_that_nobody_expects_is_not_counted() -> None:
    ledger = ledger_of(t1="train")
    ledger.worker_reported(worker("w1", task("t9", 10)))
    assert produced(ledger, "train") == 0


def test_a_job_that_is_forgotten_takes_its_tasks_along() -> None:
    ledger = ledger_of(t1="old", t2="train")
    ledger.worker_reported(worker("w1", task("t1", 10), task("t2", 3)))
    ledger.retain_only(["train"], [])
    ledger.worker_reported(worker("w1", task("t1", 10), task("t2", 3)))
    assert produced(ledger, "old") == 0
    assert produced(ledger, "train") == 3


def test_a_client_that_left_counts_for_its_trainer() -> None:
    ledger = Statistics()
    for client in ("1", "2"):
        ledger.client_joined(client, "train", "lr=0.1")
        ledger.client_reported(ClientReport(client_id=client, elements=10, wait_ns=5, active_ns=7, lost=1), "train")
    ledger.retain_only(["train"], ["2"])
    past = ledger.job("train").trainers["lr=0.1"]
    assert (past.elements, past.wait_ns, past.active_ns, past.lost) == (10, 5, 7, 1)
    assert list(ledger.job("train").clients) == ["2"]


def test_a_client_that_nobody_knows_is_not_counted() -> None:
    ledger = Statistics()
    ledger.client_reported(ClientReport(client_id="9", elements=10), "train")
    assert not ledger.job("train").clients


def test_readers_without_a_name_stay_listed_for_a_while_and_counted_for_ever() -> None:
    ledger = Statistics()
    for number in range(40):
        ledger.client_joined(str(number), "loop", "")
        ledger.client_reported(ClientReport(client_id=str(number), elements=1), "loop")
        ledger.retain_only(["loop"], [])
    totals = ledger.job("loop")
    assert len(totals.trainers) == 16
    assert "39" in totals.trainers
    assert totals.unlisted_consumed + sum(trainer.elements for trainer in totals.trainers.values()) == 40


# ---- stages


def test_stages_are_summed_over_tasks_the_last_operation_first() -> None:
    ledger = ledger_of(t1="train", t2="train")
    for name in ("t1", "t2"):
        stages = (stage("map(f)", 0, 5, busy_ns=10), stage("range(9)", 1, 6, wait_ns=3))
        ledger.worker_reported(worker("w of " + name, task(name, 5, stages=stages)))
    assert stages_of(ledger.job("train")) == [
        stage("map(f)", 0, 10, busy_ns=20),
        stage("range(9)", 1, 12, wait_ns=6),
    ]


def test_what_a_stage_did_before_its_task_was_gone_stays_counted_and_what_it_held_does_not() -> None:
    ledger = ledger_of(t1="train", t2="train")
    for name in ("t1", "t2"):
        stages = (stage("prefetch(8)", 0, 5, buffered=3, capacity=8),)
        ledger.worker_reported(worker("w of " + name, task(name, 5, stages=stages)))
    ledger.worker_gone("w of t1")
    assert stages_of(ledger.job("train")) == [stage("prefetch(8)", 0, 10, buffered=3, capacity=8)]
    ledger.worker_gone("w of t2")
    assert stages_of(ledger.job("train")) == [stage("prefetch(8)", 0, 10)]


def test_two_stages_of_one_name_are_two_also_when_their_task_is_gone() -> None:
    """The sides of `zip(ds, ds)`."""
    ledger = ledger_of(t1="train", t2="train")
    stages = (stage("zip", 0, 5), stage("range(9)", 1, 5), stage("range(9)", 1, 7))
    ledger.worker_reported(worker("w1", task("t1", 5, stages=stages)))
    ledger.worker_reported(worker("w2", task("t2", 5, stages=stages)))
    ledger.worker_gone("w1")
    assert [found.elements for found in stages_of(ledger.job("train"))] == [10, 10, 14]
    ledger.worker_gone("w2")
    assert [found.elements for found in stages_of(ledger.job("train"))] == [10, 10, 14]
