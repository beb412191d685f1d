"""`svc.receipt`: what was delivered of an epoch, compared with the elements themselves."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.elements.content_digest import digest_of
from dsnb.errors import DataLossWarning, NotFoundError
from dsnb.monitor.receipt import Receipt
from dsnb.notebook.service import DataService
from tests.support.cluster import Cluster
from tests.support.element_hash import element_hash
from tests.support.reading import run_in_threads
from tests.support.rounds import close
from tests.support.waiting import wait_for

LENGTH = 2000
READ_BEFORE = 300


def slowly(x: int) -> int:
    time.sleep(0.0005)
    return x


def numbers(service: DataService, *, deterministic: bool, on_worker_loss: str | None = None) -> dsnb.Dataset:
    made = dsnb.Dataset.range(LENGTH).map(slowly, num_parallel_calls=2, deterministic=deterministic)
    return made.apply(dsnb.distribute("distributed_epoch", service, job_name="train", on_worker_loss=on_worker_loss))


def numbers_at(found: Receipt) -> set[int]:
    """The numbers of all splits that a receipt names, as in "splits 1,203 to 1,210 of range(2000)"."""
    places = [
        place.removesuffix(f" of range({LENGTH})").replace(",", "") for p in found.parts for place in p.missing_at
    ]
    spans = [[int(word) for word in place.split() if word.isdigit()] for place in places]
    return {number for span in spans for number in range(span[0], span[-1] + 1)}


def read_while_a_worker_is_killed(service: DataService, data: dsnb.Dataset) -> list[int]:
    """All elements that arrive; a worker process is killed after the first few hundred."""
    got: list[int] = []
    for element in data:
        got.append(int(element))
        if len(got) == READ_BEFORE:
            os.kill(service.status().workers[0].pid, signal.SIGKILL)
    return got


@pytest.mark.slow
def test_each_element_came_once_although_a_worker_was_killed() -> None:
    with dsnb.start(workers=2, isolation="process") as service:
        got = read_while_a_worker_is_killed(service, numbers(service, deterministic=True))
        found = service.receipt("train")
    assert sorted(got) == list(range(LENGTH))
    assert repr(found) == "epoch 1 of job 'train': 2,000 of 2,000 elements, each once"
    assert found.each_once


@pytest.mark.slow
def test_what_did_not_arrive_is_told_exactly_and_is_among_the_splits_that_are_named() -> None:
    with dsnb.start(workers=2, isolation="process") as service, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        got = read_while_a_worker_is_killed(service, numbers(service, deterministic=False))
        found = service.receipt("train")
        shown = service.status().job("train").receipt
    missing = set(range(LENGTH)) - set(got)
    assert (found.over, found.expected, found.delivered) == (True, LENGTH, len(got))
    assert (found.missing, found.twice) == (len(missing), 0)
    assert missing <= numbers_at(found)
    assert shown == found.summary


@pytest.mark.slow
def test_what_did_not_arrive_of_ordered_data_is_named_exactly() -> None:
    with dsnb.start(workers=2, isolation="process") as service, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        got = read_while_a_worker_is_killed(service, numbers(service, deterministic=True, on_worker_loss="drop"))
        found = service.receipt("train")
    missing = set(range(LENGTH)) - set(got)
    assert len(missing) == found.missing
    assert missing == numbers_at(found)


def test_a_receipt_survives_the_restart_of_the_dispatcher_in_its_folder(tmp_path: Path) -> None:
    with Cluster(2, dispatcher={"work_dir": tmp_path}) as cluster:
        service = cluster.service
        data = dsnb.Dataset.range(LENGTH).apply(dsnb.distribute("distributed_epoch", service, job_name="train"))
        elements = iter(data)
        got = [int(next(elements)) for _ in range(READ_BEFORE)]
        cluster.restart_dispatcher()
        got += [int(element) for element in elements]
        before = service.receipt("train")
        assert sorted(got) == list(range(LENGTH))
        assert before.each_once
        cluster.restart_dispatcher()
        assert service.receipt("train") == before


def test_each_trainer_of_the_cache_has_a_line_and_each_epoch_a_receipt() -> None:
    with dsnb.start(workers=2) as service:
        for trainer in ("a", "b"):
            cache = dsnb.CrossTrainerCache(trainer, on_lag="wait")
            data = dsnb.Dataset.range(100).apply(
                dsnb.distribute("distributed_epoch", service, job_name="shared", cross_trainer_cache=cache)
            )
            data = data.with_options(dsnb.Options(receipts=True))
            assert len(list(data)) == 100
        found = service.receipt("shared", 1)
        assert "trainer 'a': 100 of 100 elements" in repr(found)
        assert "<b>epoch 1 of job" in found._repr_html_()
        assert found.to_dict()["expected"] == 100
        assert {reader.digest for reader in found.readers} == {found.digest} != {""}
        with pytest.raises(NotFoundError, match="there is no receipt of epoch 9 of job 'shared'"):
            service.receipt("shared", 9)


def test_cancelled_and_anonymous_jobs_leave_their_receipt() -> None:
    with dsnb.start(workers=1) as service:
        elements = iter(numbers(service, deterministic=True))
        next(elements)
        service.cancel("train")
        assert "of 2,000 elements had been reported as consumed by then" in repr(service.receipt("train"))
        anonymous = iter(dsnb.Dataset.range(100).apply(dsnb.distribute("distributed_epoch", service)))
        next(anonymous)
        (name,) = [job.name for job in service.status().jobs if job.anonymous]
        assert len(list(anonymous)) == 99
        assert service.receipt(name).each_once
        elements.close()


def digest_of_an_epoch(*, workers: int, readers: int = 1, changed: int = -1, job_name: str = "train") -> str:
    """The digest of an epoch over samples, of which one may be changed."""

    def sample(number: int) -> dict[str, Any]:
        return {"image": np.full((4, 5), number), "label": "changed" if number == changed else str(number)}

    with dsnb.start(workers=workers) as service:
        data = (
            dsnb.Dataset.range(200).map(sample).apply(dsnb.distribute("distributed_epoch", service, job_name=job_name))
        )
        reading = [iter(data.with_options(dsnb.Options(receipts=True))) for _ in range(readers)]
        for elements in reading:
            elements.start()
        while reading:
            for elements in list(reading):
                try:
                    next(elements)
                except StopIteration:
                    reading.remove(elements)
        found = service.receipt(job_name)
        assert found.each_once
        assert f"contents {found.digest}" in service.status().job(job_name).receipt
        return found.digest


@pytest.mark.slow
def test_the_digest_is_that_of_the_contents_whatever_the_number_of_readers_and_workers() -> None:
    digest = digest_of_an_epoch(workers=1)
    assert len(digest) == 32
    assert digest_of_an_epoch(workers=3) == digest_of_an_epoch(workers=2, readers=3) == digest
    assert digest_of_an_epoch(workers=2, changed=77) != digest


def numbers_of_rank(service: DataService, length: int, rank: int, **options: Any) -> dsnb.Dataset:
    policy = dsnb.distribute("distributed_epoch", service, job_name="rounds", rank=rank, world_size=4, **options)
    return dsnb.Dataset.range(length).with_options(dsnb.Options(receipts=True)).apply(policy)


DIGEST_OF_NUMBERS = digest_of(map(element_hash, range(10))).hex()


@pytest.mark.parametrize("at_end", ["pad", "repeat"])
def test_ranks_have_the_digest_of_the_data_and_fillers_do_not_count(at_end: str) -> None:
    with dsnb.start(workers=2) as service:
        ranks = [numbers_of_rank(service, 10, rank, at_end=at_end) for rank in range(4)]
        got = run_in_threads([partial(list, rank) for rank in ranks], timeout=60)
        found = service.receipt("rounds")
    assert [len(elements) for elements in got] == [3] * 4
    assert (found.delivered, found.missing) == (10, 0)
    assert [reader.reader for reader in found.readers] == [f"consumer {rank}" for rank in range(4)]
    assert sorted(reader.elements for reader in found.readers) == [2, 2, 3, 3]
    assert found.digest == DIGEST_OF_NUMBERS


def test_what_a_rank_read_ahead_and_its_user_did_not_get_is_not_in_its_digest() -> None:
    read_ahead = threading.Barrier(4)

    def read(data: dsnb.Dataset) -> list[int]:
        elements = iter(data.prefetch(2))
        got = [next(elements)]
        wait_for(lambda: service.status().job("rounds").consumed >= 12, what="two rounds ahead", timeout=60, every=0.1)
        read_ahead.wait(60)
        close(elements)
        return [*got, *data]

    with dsnb.start(workers=2) as service:
        ranks = [numbers_of_rank(service, 40, rank) for rank in range(4)]
        got = run_in_threads([partial(read, rank) for rank in ranks], timeout=60)
        found = service.receipt("rounds")
    received = [element for elements in got for element in elements]
    assert (found.over, found.delivered) == (True, len(received))
    assert found.digest == digest_of(map(element_hash, received)).hex()


def test_ranks_in_the_order_of_the_splits_have_the_digest_too() -> None:
    with dsnb.start(workers=2) as service:
        ordered = dsnb.Options(deterministic=True, receipts=True)
        policies = [
            dsnb.distribute("distributed_epoch", service, job_name="rounds", rank=rank, world_size=2)
            for rank in range(2)
        ]
        ranks = [dsnb.Dataset.range(10).with_options(ordered).apply(policy) for policy in policies]
        assert run_in_threads([partial(list, rank) for rank in ranks], timeout=60) == [
            [*range(0, 10, 2)],
            [*range(1, 10, 2)],
        ]
        found = service.receipt("rounds")
    assert found.each_once
    assert found.digest == DIGEST_OF_NUMBERS
