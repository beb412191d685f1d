"""What a status tells of a real service, for a page that shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.client.inbox import Inbox
from dsnb.errors import CancelledError
from dsnb.pipeline.engine.to_numpy import NumpyConverter
from tests.support.cluster import Cluster
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for


def test_each_run_of_splits_is_told_with_its_worker_and_its_times() -> None:
    with Cluster(workers=2) as cluster:
        began = time.time()
        elements = iter(
            dsnb.Dataset.range(200)
            .map(lambda x: time.sleep(0.002) or x)  # long enough for both workers to get some
            .apply(dsnb.distribute("distributed_epoch", cluster.service, job_name="train"))
        )
        first(1, elements)
        assert cluster.job("train").grants
        rest = numbers(elements)
        grants = cluster.job("train").grants
        assert len(rest) == 199
        assert {grant.worker for grant in grants} == {"w0", "w1"}
        assert sorted(at for grant in grants for at in range(grant.first, grant.end)) == list(range(200))
        assert {grant.state for grant in grants} == {"done"}
        assert all(began <= grant.granted_at <= grant.ended_at <= time.time() for grant in grants)
        told = [event.text for event in cluster.status().events]
        assert told[-2:] == ["job 'train' was created (distributed_epoch)", "pass 1 of job 'train' ended"]


@pytest.mark.slow
def test_a_readers_time_is_divided_into_waiting_decoding_and_its_own_loop() -> None:
    with Cluster(workers=0) as cluster:
        cluster.add_worker(remote=True)

        def slow(x: Any) -> Any:
            time.sleep(0.01)
            return np.zeros(100_000) + x

        data = dsnb.Dataset.range(30).map(slow)
        elements = iter(data.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="train")))
        assert len(list(islice(elements, 20))) == 20
        trainer = cluster.job("train").trainers[0]
        assert 0 < trainer.decode_ns < trainer.active_ns
        assert trainer.wait_ns > 0.1e9
        assert trainer.wait_ns + trainer.decode_ns <= trainer.active_ns
        assert sum(place.in_flight_ns for place in trainer.cursors) > 0


@pytest.mark.parametrize("place", [(Inbox, "next"), (NumpyConverter, "convert")], ids=["arrival", "conversion"])
def test_the_time_for_elements_that_arrive_or_are_converted_is_not_the_readers_own_loop(
    monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    work, slowed = getattr(*place), False

    def slow(*arguments: Any) -> Any:
        nonlocal slowed
        slowed = True
        time.sleep(0.5)
        return work(*arguments)

    endless = dsnb.Dataset.range(5).repeat()
    with Cluster(workers=1) as cluster:
        elements = iter(endless.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="train")))
        first(1, elements)
        monkeypatch.setattr(*place, slow)
        while not slowed:
            next(elements)
        wait_for(lambda: cluster.job("train").trainers[0].decode_ns >= 0.5e9, what="a report with that time")
        elements.close()


def test_thread_workers_tell_how_late_they_get_their_turn() -> None:
    with Cluster(workers=1, worker={"isolation": "thread"}) as cluster:
        before = cluster.status().workers[0]
        wait_for(
            lambda: cluster.status().workers[0].latency_samples > before.latency_samples + 3, what="looks of the worker"
        )
        after = cluster.status().workers[0]
        assert after.late_ns > before.late_ns


def test_each_pass_of_a_reader_counts_its_own_waiting_and_no_other_s() -> None:
    def slow(x: object) -> object:
        time.sleep(0.02)
        return x

    cache = dsnb.CrossTrainerCache("t")
    with dsnb.start(workers=1, name="passes") as service:
        shared = dsnb.distribute("parallel_epochs", service, job_name="train", cross_trainer_cache=cache)
        data = dsnb.Dataset.range(5).map(slow).apply(shared).repeat(4)
        assert len(list(data)) == 20
        told = service.wait_until(lambda now: now.jobs[0].trainers[0].elements == 20).jobs[0].trainers[0]
        assert 0 < told.wait_ns <= told.active_ns


def test_a_wait_of_a_consumer_counts_while_it_lasts() -> None:
    with dsnb.start(workers=1, name="consumers") as service:
        shared = dsnb.distribute("parallel_epochs", service, job_name="train", consumer_index=0, num_consumers=2)
        with iter(dsnb.Dataset.range(5).repeat().apply(shared)) as elements:
            reader = threading.Thread(target=lambda: suppressed(elements), name="test-consumer")
            reader.start()
            try:
                service.wait_until(
                    lambda now: any(one.wait_ns > 200_000_000 for job in now.jobs for one in job.trainers)
                )
            finally:
                elements.close()
                reader.join(30)


def suppressed(elements: Iterator[object]) -> None:
    """Wait for an element until reading is stopped."""
    with suppress(CancelledError):
        next(elements)
