"""Counters only grow: what a task or reader did counts on when it is gone."""

from __future__ import annotations

from dsnb.dispatcher.ledger import Ledger, stages_of
from dsnb.wire.messages import ClientReport, StageReport, TaskReport, TrainerReport, WorkerReport


def ledger_of_one_job() -> Ledger:
    ledger = Ledger()
    ledger.expect_task("4000", "job")
    ledger.client_joined("3000", "job", "t")
    return ledger


def task_report(head: int, state: str = "running", hits: int = 0) -> TaskReport:
    return TaskReport(
        task_id="4000",
        state=state,
        head=head,
        trainers=(TrainerReport(trainer_id="t", hits=hits, misses=1, skipped=2),),
        stages=(StageReport(name="range", elements=head, busy_ns=10),),
    )


def test_a_dropped_task_stays_in_its_job_s_totals() -> None:
    ledger = ledger_of_one_job()
    ledger.worker_reported(WorkerReport(uid="u", tasks=(task_report(10),)))
    ledger.worker_reported(WorkerReport(uid="u", tasks=(task_report(12, "dropped", hits=5),)))
    totals = ledger.job("job")
    assert totals.produced == 12
    assert totals.tasks == {}
    assert (totals.trainers["t"].hits, totals.trainers["t"].misses, totals.trainers["t"].skipped) == (5, 1, 2)
    assert [stage.elements for stage in stages_of(totals)] == [12]


def test_the_tasks_of_a_lost_worker_count_with_their_last_words() -> None:
    ledger = ledger_of_one_job()
    ledger.worker_reported(WorkerReport(uid="u", tasks=(task_report(10, hits=3),)))
    ledger.worker_gone("u")
    assert ledger.job("job").produced == 10
    assert ledger.job("job").trainers["t"].hits == 3
    assert ledger.workers == {}


def test_a_task_that_is_told_of_twice_after_it_was_dropped_counts_once() -> None:
    ledger = ledger_of_one_job()
    for _ in range(2):
        ledger.worker_reported(WorkerReport(uid="u", tasks=(task_report(12, "dropped"),)))
    assert ledger.job("job").produced == 12


def test_a_reader_that_left_stays_in_its_trainer_s_totals() -> None:
    ledger = ledger_of_one_job()
    ledger.client_reported(ClientReport(client_id="3000", elements=7, wait_ns=5), "job")
    ledger.keep({"job"}, set())
    totals = ledger.job("job")
    assert (totals.trainers["t"].elements, totals.trainers["t"].wait_ns) == (7, 5)
    assert totals.clients == {}


def test_plain_readers_are_listed_for_a_while_and_counted_for_ever() -> None:
    ledger = Ledger()
    for number in range(40):
        client = str(3000 + number)
        ledger.client_joined(client, "job", "")
        ledger.client_reported(ClientReport(client_id=client, elements=2), "job")
        ledger.keep({"job"}, set())
    totals = ledger.job("job")
    assert len(totals.trainers) == 16, "the newest"
    assert "3039" in totals.trainers
    assert totals.earlier + sum(trainer.elements for trainer in totals.trainers.values()) == 80


def test_a_forgotten_job_takes_its_totals_along() -> None:
    ledger = ledger_of_one_job()
    ledger.worker_reported(WorkerReport(uid="u", tasks=(task_report(10),)))
    ledger.keep(set(), set())
    ledger.worker_reported(WorkerReport(uid="u", tasks=(task_report(20, "dropped"),)))
    assert ledger.job("job").produced == 0


def test_stages_are_summed_over_the_tasks_that_run() -> None:
    ledger = Ledger()
    for number in (4000, 4001):
        ledger.expect_task(str(number), "job")
        stages = (StageReport(name="map(f)", elements=3, busy_ns=7), StageReport(name="range", depth=1, elements=5))
        report = TaskReport(task_id=str(number), state="running", stages=stages)
        ledger.worker_reported(WorkerReport(uid=f"u{number}", tasks=(report,)))
    stages = stages_of(ledger.job("job"))
    assert [(stage.name, stage.depth, stage.elements) for stage in stages] == [("map(f)", 0, 6), ("range", 1, 10)]
    assert stages[0].busy_ns == 14
