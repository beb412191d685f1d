"""Jobs that are over leave the dispatcher's memory and journal where they were."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from dsnb.dispatcher.handlers.membership import JOBS_KEPT
from dsnb.dispatcher.split_history import MAX_ENDED_JOBS as TIMELINES_KEPT
from dsnb.dispatcher.state import MAX_LAST_RECEIPTS
from dsnb.errors import DsnbWarning
from dsnb.monitor.snapshot import OlderJobs
from tests.support.cluster import Cluster
from tests.support.reading import first
from tests.support.waiting import wait_for

WORKERS = 10
SOON = {"job_gc_check_interval_ms": 20, "task_gc_timeout_ms": 20, "job_gc_timeout_ms": 100}

ALLOWED_OBJECTS = 1_000
"""How many objects of this process may have come to stay. One for each of the 1,000 tasks would be as many."""

ALLOWED_STATE = 50
"""By how many characters the state may be longer: its counters have more digits."""

ALLOWED_JOURNAL = 256 << 10
"""What the journal's file holds at the most when the dispatcher was stopped: mainly the receipts of the last jobs that
had no name, 1.5 KB for one of ten tasks."""

ALLOWED_AT_WORK = 6 << 20
"""What file and log hold while it works: SQLite's log has room for 4 MB before it is written anew from its start."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(WORKERS, dispatcher={**SOON, "work_dir": tmp_path}) as cluster:
        yield cluster


def read(cluster: Cluster, number: int) -> None:
    """Half of the jobs have names, each mode has its turn, and each fifth is left in the middle."""
    mode = ["parallel_epochs", "distributed_epoch"][number // 2 % 2]
    policy = dsnb.distribute(mode, cluster.service, job_name=f"job {number}" if number % 2 else None)
    with iter(dsnb.Dataset.range(20).map(lambda x: x + number).apply(policy)) as elements:
        for _, _ in zip(range(5 if number % 5 == 0 else 10_000), elements, strict=False):
            pass


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("journal*"))


def settled(cluster: Cluster) -> tuple[int, int]:
    """The length of the state and the number of objects, when all jobs and datasets are collected."""
    kept = cluster.dispatcher.debug_state
    wait_for(
        lambda: not any(kept()[table] for table in ("jobs", "datasets", "tasks", "clients")), what="all to be collected"
    )
    wait_for(
        lambda: not any(worker.debug_state()["tasks"] for worker in cluster.workers), what="workers to drop their tasks"
    )
    cluster.status()
    gc.collect()
    return kept()["state_bytes"], len(gc.get_objects())


@pytest.mark.soak
def test_a_hundred_jobs_of_ten_tasks_leave_memory_and_journal_where_they_were(cluster: Cluster, tmp_path: Path) -> None:
    # Pools and caches take what they keep, and so do receipts: those of the jobs without a name.
    for number in range(100, 100 + 2 * MAX_LAST_RECEIPTS, 2):
        read(cluster, number)
    kept = cluster.dispatcher.debug_state
    state, objects = settled(cluster)
    before = kept()["last_record"]
    for number in range(300, 400):
        read(cluster, number)
    state_now, objects_now = settled(cluster)

    assert kept()["last_record"] - before > 100 * WORKERS, "the jobs had not ten tasks each"
    assert state_now - state < ALLOWED_STATE
    assert objects_now - objects < ALLOWED_OBJECTS
    assert kept()["statistics"] == {"jobs": [], "tasks": []}
    assert list((tmp_path / "blobs").iterdir()) == []
    assert size(tmp_path) < ALLOWED_AT_WORK
    cluster.stop()
    assert size(tmp_path) < ALLOWED_JOURNAL


def test_a_job_whose_readers_left_before_its_end_stays_in_the_status_after_its_tasks_were_freed() -> None:
    with Cluster(1, dispatcher={**SOON, "job_gc_timeout_ms": 600_000}) as cluster:
        endless = dsnb.Dataset.range(20).repeat()
        with iter(endless.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="left"))) as elements:
            assert len(first(30, elements)) == 30
        wait_for(lambda: not cluster.job("left").tasks, what="its tasks to be freed")
        left = cluster.job("left")
        assert (left.state, left.clients, left.consumed) == ("idle", 0, 30)
        assert left.produced >= 30
        assert cluster.status().older == OlderJobs()
        cluster.service.forget("left")
        assert cluster.status().jobs == ()


@pytest.mark.slow
def test_of_many_finished_jobs_the_newest_are_shown_and_the_others_are_counted(tmp_path: Path) -> None:
    """As after a search over a hundred and more trainings: whatever was read, a status stays small."""
    with Cluster(1, dispatcher={"work_dir": tmp_path, "job_gc_check_interval_ms": 50}) as cluster:
        twenty = dsnb.Dataset.range(20)
        older = 20

        def job(number: int) -> dsnb.Dataset:
            return twenty.apply(dsnb.distribute("distributed_epoch", cluster.service, job_name=f"job {number}"))

        for number in range(JOBS_KEPT + older):
            assert len(list(job(number))) == 20
        wait_for(lambda: len(cluster.status().jobs) == JOBS_KEPT, what="the older jobs to be added up")
        status = cluster.status()
        assert status.older == OlderJobs(jobs=older, produced=20 * older, consumed=20 * older)
        assert status.job_count == JOBS_KEPT + older
        assert [job.name for job in status.jobs] == [f"job {number}" for number in range(older, older + JOBS_KEPT)]
        assert {job.state for job in status.jobs} == {"finished"}
        with_runs = [job.name for job in status.jobs if job.grants]
        assert with_runs == [job.name for job in status.jobs[-len(with_runs) :]], "the newest ones"
        assert TIMELINES_KEPT <= len(with_runs) < JOBS_KEPT // 2

        with pytest.warns(DsnbWarning, match="pass 1 of job 'job 3' has already been read to its end"):
            assert list(again := job(3)) == []
        assert len(list(again)) == 20
        shown = cluster.job("job 3")
        assert (shown.iteration, shown.produced, shown.consumed) == (1, 40, 40), "its counters go on"
        cluster.service.forget("job 4")
        wait_for(
            lambda: cluster.status().job_count == JOBS_KEPT + older - 1, what="a forgotten job to be counted no more"
        )

        cluster.restart_dispatcher()
        with pytest.warns(DsnbWarning, match="pass 1 of job 'job 5' has already been read to its end"):
            assert list(job(5)) == []
