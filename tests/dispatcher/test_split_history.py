from __future__ import annotations

from msgspec.structs import replace

from dsnb.dispatcher.split_history import MAX_ENDED_JOBS, MAX_GRANTS_PER_JOB, SplitHistory
from dsnb.monitor.snapshot import GrantStatus
from tests.dispatcher.model import SimClient, SimTask, SimWorker
from tests.dispatcher.simulation import Service


class Watched:
    """A simulated service with two workers that read one job, and its timeline, fed as the shell feeds it."""

    def __init__(self, count: int = 40) -> None:
        self.service = Service()
        self.timeline = SplitHistory(self.service.core.state)
        self.workers: list[SimWorker] = [self.service.add_worker(f"uid{number}") for number in range(2)]
        self.client: SimClient = self.service.join(self.service.register(count), "train")
        self.learnt = 0

    def task(self, number: int) -> SimTask:
        return self.service.task(self.workers[number])

    def at(self, now: float) -> list[GrantStatus]:
        """Let all that happened meanwhile have happened now; the runs of the job."""
        records, self.learnt = self.service.records[self.learnt :], len(self.service.records)
        self.timeline.apply(records, now)
        return list(self.timeline.grants_of("train"))


def told(runs: list[GrantStatus]) -> list[tuple[str, int, int, str, float, float]]:
    return [(run.worker, run.first, run.end, run.state, run.granted_at, run.ended_at) for run in runs]


def test_a_run_is_told_with_who_has_it_since_when_and_when_it_was_done() -> None:
    watched = Watched()
    watched.service.ask(watched.task(0), want=4)
    watched.at(1.0)
    watched.service.ask(watched.task(1), want=4)
    watched.service.ask(watched.task(0), want=2)
    assert told(watched.at(2.0)) == [
        ("w0", 0, 4, "in hand", 1.0, 0.0),
        ("w1", 4, 8, "in hand", 2.0, 0.0),
        ("w0", 8, 10, "in hand", 2.0, 0.0),
    ]
    watched.service.consume(watched.task(0), 5)
    watched.service.report(watched.workers[0])
    assert [run.state for run in watched.at(3.0)] == ["done", "in hand", "in hand"]
    watched.service.consume(watched.task(0), 1)
    watched.service.report(watched.workers[0])
    assert told(watched.at(4.0)) == [
        ("w0", 0, 4, "done", 1.0, 3.0),
        ("w1", 4, 8, "in hand", 2.0, 0.0),
        ("w0", 8, 10, "done", 2.0, 4.0),
    ]


def test_what_a_worker_had_in_hand_moves_to_the_one_that_takes_it_over() -> None:
    watched = Watched()
    for number in range(2):
        watched.service.ask(watched.task(number), want=4)
    watched.service.stop(watched.workers.pop(0))
    assert [(run.worker, run.state) for run in watched.at(1.0)] == [("w0", "moved"), ("w1", "in hand")]
    watched.service.hear(watched.client)
    assert [(run.worker, run.first, run.state, run.reassigned) for run in watched.at(2.0)] == [
        ("w0", 0, "moved", False),
        ("w1", 4, "in hand", False),
        ("w1", 0, "in hand", True),
    ]


def test_the_end_of_a_pass_leaves_nothing_in_hand() -> None:
    watched = Watched(6)
    for worker in watched.workers:
        watched.service.finish(worker, watched.service.task(worker))
    assert {run.state for run in watched.at(1.0)} == {"done"}
    assert sum(run.end - run.first for run in watched.at(1.0)) == 6


def test_a_pass_that_is_given_up_drops_what_was_in_hand_and_a_job_that_is_gone_takes_its_runs_along() -> None:
    watched = Watched()
    watched.service.ask(watched.task(0))
    watched.service.close(watched.client)
    watched.service.wait(3.0, watched.service.keep_alive)
    assert [run.state for run in watched.at(1.0)] == ["dropped"]
    watched.service.forget("train")
    assert watched.at(2.0) == []


def test_only_the_newest_runs_of_a_job_are_kept() -> None:
    watched = Watched(4 * MAX_GRANTS_PER_JOB)
    for _ in range(MAX_GRANTS_PER_JOB + 10):
        watched.service.ask(watched.task(0), want=1)
    runs = watched.at(1.0)
    assert [run.first for run in runs] == list(range(10, MAX_GRANTS_PER_JOB + 10))


def test_after_a_restart_new_runs_are_told_and_what_was_done_before_is_not_counted_again() -> None:
    watched = Watched()
    watched.service.ask(watched.task(0), want=4)
    watched.service.consume(watched.task(0), 4)
    watched.service.report(watched.workers[0])
    watched.service.restart()
    watched.timeline, watched.learnt = SplitHistory(watched.service.core.state), len(watched.service.records)
    watched.service.ask(watched.task(0), want=3)
    watched.service.consume(watched.task(0), 2)
    watched.service.report(watched.workers[0])
    assert [run.state for run in watched.at(1.0)] == ["in hand"]
    watched.service.consume(watched.task(0), 1)
    watched.service.report(watched.workers[0])
    assert [(run.first, run.end, run.state) for run in watched.at(2.0)] == [(4, 7, "done")]


def test_splits_that_were_lost_and_are_given_again_are_marked() -> None:
    watched = Watched()
    first = watched.service.ask(watched.task(0), want=4)
    watched.service.stop(watched.workers.pop(0))
    watched.at(1.0)
    again = next(record for record in watched.service.records if type(record).__name__ == "SplitsGiven")
    late = watched.service.add_worker("late")
    watched.timeline.apply(watched.service.records[watched.learnt :], 2.0)
    watched.learnt = len(watched.service.records)
    # No mode gives lost splits again yet; the record that would say so is this one.
    watched.timeline.apply([replace(again, task_id=watched.service.task(late).task_id)], 3.0)
    runs = watched.at(4.0)
    assert [(run.worker, run.first, run.end, run.reassigned) for run in runs] == [
        ("w0", first.first, first.end, False),
        ("w2", first.first, first.end, True),
    ]


def test_of_jobs_without_a_task_the_runs_of_the_newest_are_kept() -> None:
    watched = Watched()
    service, dataset = watched.service, watched.service.register(40)
    watched.service.ask(watched.task(0), want=4)
    names = [f"other {number}" for number in range(2 * MAX_ENDED_JOBS)]
    for name in names:
        client = service.join(dataset, name)
        for worker in watched.workers:
            service.finish(worker, service.task(worker))
        service.close(client)
        service.wait(0.25, service.keep_alive)
    watched.at(1.0)
    kept = [name for name in names if watched.timeline.grants_of(name)]
    assert kept == names[-len(kept) :]
    assert MAX_ENDED_JOBS <= len(kept) <= MAX_ENDED_JOBS + 1
    assert watched.timeline.grants_of("train"), "which is at work, however long ago it began"
