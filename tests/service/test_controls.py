"""What people do to a service that runs, done to real ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import dsnb
from dsnb.errors import CancelledError, DsnbWarning, FailedPreconditionError, NotFoundError
from tests.support.cluster import Cluster
from tests.support.reading import first, numbers, run_in_threads
from tests.support.waiting import wait_for

MANY = 4000


def read(service: dsnb.DataService, mode: str = "distributed_epoch", job: str = "train", **more: Any) -> Iterator[Any]:
    data = dsnb.Dataset.range(MANY).map(lambda x: x)
    return iter(data.apply(dsnb.distribute(mode, service, job_name=job, max_outstanding_requests=8, **more))).start()


def sent_by(service: dsnb.DataService) -> list[int]:
    return [worker.sent_elements for worker in service.status().workers]


def nothing_in_flight(service: dsnb.DataService, name: str) -> bool:
    """Whether all tasks are paused, though one may have made all of its elements before, and their reader has had all
    that they sent."""
    now = service.status()
    job = now.job(name)
    assert job is not None
    sent = sum(worker.sent_elements for worker in now.workers)
    # The last one is with the loop: it counts as consumed when the next is asked for.
    return all(task.state in ("paused", "ended") for task in job.tasks) and job.consumed >= sent - 1


@pytest.fixture(scope="module", params=["thread", "process"])
def service(request: pytest.FixtureRequest) -> Iterator[dsnb.DataService]:
    with dsnb.start(workers=2, name=f"controls-{request.param}", isolation=request.param) as started:
        yield started


@pytest.fixture
def job(service: dsnb.DataService) -> Iterator[str]:
    yield "train"
    if service.status().job("train"):
        service.cancel("train")


# ---- pause and resume


@pytest.mark.slow
def test_a_paused_job_hands_out_what_is_in_flight_and_no_more_until_it_is_resumed(
    service: dsnb.DataService, job: str
) -> None:
    elements = read(service)
    got = first(5, elements)
    service.pause(job)
    assert service.status().job(job).state == "paused"  # type: ignore[union-attr]
    assert "svc.pause() of " in service.status().job(job).paused_by  # type: ignore[union-attr]
    waiting = threading.Thread(target=lambda: got.extend(numbers(elements)), daemon=True)
    waiting.start()
    wait_for(lambda: nothing_in_flight(service, job), what="what was in flight to be read")
    sent = sent_by(service)
    for _ in range(5):
        assert service.status().job(job).state == "paused"  # type: ignore[union-attr]
        assert sent_by(service) == sent
    assert sum(sent) < 40
    service.resume(job)
    waiting.join(30)
    assert sorted(got) == list(range(MANY))


@pytest.mark.slow
def test_who_begins_to_read_a_paused_job_is_warned(service: dsnb.DataService, job: str) -> None:
    elements = read(service)
    next(elements)
    service.pause(job)
    with pytest.warns(DsnbWarning, match=r"job 'train' is paused \(by svc.pause\(\) of .*svc.resume\('train'\)"):
        other = read(service)
    del elements, other


# ---- cancel


@pytest.mark.slow
def test_each_reader_of_a_cancelled_job_gets_an_error_that_says_who_did_it(service: dsnb.DataService, job: str) -> None:
    elements, other = read(service), read(service)
    first(3, elements)
    service.cancel(job)

    def to_the_end(reader: Iterator[Any]) -> CancelledError:
        with pytest.raises(CancelledError, match=r"the job 'train' was cancelled by svc.cancel\(\) of ") as caught:
            numbers(reader)
        assert caught.value.hint == "iterate the dataset again to start the job again"
        return caught.value

    run_in_threads([lambda: to_the_end(elements), lambda: to_the_end(other)])
    assert service.status().job(job) is None
    assert sorted(numbers(read(service))) == list(range(MANY))


@pytest.mark.slow
def test_a_waiting_reader_of_a_paused_job_is_ended_too(service: dsnb.DataService, job: str) -> None:
    elements = read(service)
    next(elements)
    service.pause(job)

    def wait() -> None:
        with pytest.raises(CancelledError):
            numbers(elements)

    run_in_threads([wait, lambda: service.cancel(job)])


@pytest.mark.slow
def test_the_position_in_a_cancelled_job_is_an_error_that_says_who_did_it(service: dsnb.DataService, job: str) -> None:
    elements = read(service)
    next(elements)
    service.cancel(job)
    with pytest.raises(CancelledError, match=r"the job 'train' was cancelled by svc.cancel\(\) of "):
        elements.state_dict()


# ---- workers


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_drained_worker_leaves_and_nothing_is_lost_a_removed_one_is_gone_at_once(isolation: Any) -> None:
    with dsnb.start(workers=3, name=f"leaving-{isolation}", isolation=isolation) as service:
        elements = read(service)
        got = first(5, elements)
        service.drain("w0")
        assert service.workers == 2
        got += numbers(elements)
        assert sorted(got) == list(range(MANY))
        service.wait_until(lambda now: [worker.name for worker in now.workers] == ["w1", "w2"])
        service.remove("w1")
        assert [worker.name for worker in service.status().workers] == ["w2"]
        service.drain("w0")
        service.remove("w1")
        assert service.workers == len(service.status().workers) == 1
        assert not any("replaced" in event.text or "died" in event.text for event in service.status().events)


def test_a_service_of_another_object_is_scaled_through_its_dispatcher() -> None:
    with dsnb.start(workers=1, name="scaled") as service:
        other = dsnb.connect(service.target, service.token)
        assert other.status().scalable
        other.scale(2)
        assert service.workers == len(other.status().workers) == 2


# ---- a service made by hand


def test_workers_that_were_started_one_by_one_drain_by_themselves_and_are_not_scaled() -> None:
    with Cluster(workers=2) as cluster:
        assert not cluster.status().scalable
        with pytest.raises(FailedPreconditionError, match="the workers of this service were started one by one"):
            cluster.service.scale(3)
        cluster.service.drain(cluster.workers[0].address)
        cluster.workers[0].join()
        cluster.service.remove(cluster.workers[1].name)
        with pytest.raises(FailedPreconditionError, match=r"worker w1 was removed by svc.remove\(\)"):
            cluster.workers[1].join()
        assert not cluster.status().workers


def test_a_pause_outlives_the_dispatcher_and_nothing_is_lost(tmp_path: Any) -> None:
    with Cluster(workers=1, dispatcher={"work_dir": tmp_path}) as cluster:
        elements = read(cluster.service)
        got = first(3, elements)
        cluster.service.pause("train")
        cluster.restart_dispatcher()
        wait_for(
            lambda: cluster.job("train").state == "paused" and len(cluster.status().workers) == 1, what="the return"
        )
        cluster.service.resume("train")
        assert sorted(got + numbers(elements)) == list(range(MANY))


# ---- who may, and whom


@pytest.mark.slow
def test_an_unknown_name_is_told_with_those_that_there_are(service: dsnb.DataService) -> None:
    for act in (service.pause, service.resume, service.cancel, service.drain, service.remove):
        with pytest.raises(NotFoundError, match="there is no"):
            act("nothing")
