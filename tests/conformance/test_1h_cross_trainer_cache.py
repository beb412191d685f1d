"""Section 1H: trainers of one job share one pass through the window of elements that each worker keeps."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import DataLossWarning, InvalidArgumentError
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.wire.channel import open_channel
from dsnb.wire.control_stream import ControlStream
from dsnb.wire.messages import TaskOrder, WorkerOrder, WorkerReport
from dsnb.wire.methods import SESSION
from tests.conformance.conftest import MakeCluster
from tests.support.cluster import Cluster
from tests.support.reading import first, joined
from tests.support.waiting import wait_for

ENDLESS = 10_000_000


def endless() -> dsnb.Dataset:
    """0, 1, 2 and so on, without end."""
    return dsnb.Dataset.range(ENDLESS).repeat()


class Job:
    """Readers of one job; their iterators are closed with it."""

    def __init__(self, service: Any, transfer: str | None = None, dataset: dsnb.Dataset | None = None) -> None:
        self.service = service
        self.transfer = transfer
        self.dataset = dataset or endless()
        self.iterators: list[ElementIterator] = []

    def distributed(self, trainer: str | None, **options: Any) -> dsnb.Dataset:
        """The dataset as one trainer reads it."""
        options = {"mode": "parallel_epochs", "job_name": "job", "data_transfer_protocol": self.transfer, **options}
        cache = dsnb.CrossTrainerCache(trainer) if trainer is not None else None
        return self.dataset.apply(
            dsnb.distribute(options.pop("mode"), self.service, cross_trainer_cache=cache, **options)
        )

    def reader(self, trainer: str | None, **options: Any) -> ElementIterator:
        """One iterator of one trainer."""
        self.iterators.append(iter(self.distributed(trainer, **options)).start())
        return self.iterators[-1]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        while self.iterators:  # none stays: a dataset that lives keeps its connections for the next pass
            self.iterators.pop().close()


@pytest.fixture
def job(cluster: MakeCluster, transfer: str) -> Iterator[Job]:
    """A job on one worker with a large cache."""
    with Job(cluster(1).service, transfer) as one:
        yield one


@pytest.fixture
def small(cluster: MakeCluster, transfer: str) -> Iterator[Job]:
    """A job on one worker whose cache holds 500 bytes."""
    with Job(cluster(1, worker={"cross_trainer_cache_size_bytes": 500}).service, transfer) as one:
        yield one


@pytest.mark.slow
def test_line_102_enable_cross_trainer_cache(job: Job) -> None:
    for trainer in ("Trainer 1", "Trainer 2"):
        reader = job.reader(trainer)
        assert first(10, reader) == list(range(10))
        reader.close()  # then the counts are exact: it has told what it had
    status = job.service.status().job("job")
    assert [(t.trainer_id, t.elements, t.misses, t.hits, t.skipped) for t in status.trainers] == [
        ("Trainer 1", 10, 10, 0, 0),
        ("Trainer 2", 10, 0, 10, 0),
    ]


def test_line_103_from_dataset_id(job: Job) -> None:
    dataset_id = dsnb.register_dataset(job.service, job.dataset)
    for trainer in ("Trainer 1", "Trainer 2"):
        dataset = dsnb.from_dataset_id(
            "parallel_epochs", job.service, dataset_id, job_name="job", data_transfer_protocol=job.transfer,
            cross_trainer_cache=dsnb.CrossTrainerCache(trainer),
        )  # fmt: skip
        job.iterators.append(iter(dataset))
        assert first(10, job.iterators[-1]) == list(range(10))


def test_line_104_disabled_by_default(job: Job) -> None:
    assert first(10, job.reader(None)) == list(range(10))
    assert next(job.reader(None)) >= 10


def test_line_104_disabled_by_default_after_the_first_has_left(job: Job) -> None:
    one = job.reader(None)
    assert first(10, one) == list(range(10))
    one.close()
    assert first(10, job.reader(None)) == list(range(10, 20))  # what the first had and did not consume


@pytest.mark.slow
def test_line_105_concurrent_readers(cluster: MakeCluster, transfer: str) -> None:
    readers, steps, element_bytes = 20, 50, 423
    room = ((os.cpu_count() or 1) + 8) * element_bytes
    service = cluster(1, worker={"cross_trainer_cache_size_bytes": room}).service
    dataset = endless().map(lambda x: np.full(element_bytes, x % 251, np.uint8))
    with Job(service, transfer, dataset) as job:
        trainers = [job.reader(f"Trainer {at}", max_outstanding_requests=1) for at in range(readers)]
        for step in range(steps):
            for trainer in trainers:
                np.testing.assert_array_equal(next(trainer), np.full(element_bytes, step, np.uint8))


def test_line_106_slow_client_skips_data(small: Job) -> None:
    assert first(200, small.reader("Trainer 1")) == list(range(200))
    values = first(200, small.reader("Trainer 2"))
    assert values[0] > 0
    assert len(values) == 200
    assert values == sorted(set(values)), "in order, none twice"


@pytest.mark.slow
def test_line_106_what_a_slow_client_skips_is_counted(small: Job) -> None:
    other = small.reader("Trainer 2", max_outstanding_requests=1)
    assert first(1, other) == [0]
    one = small.reader("Trainer 1")
    assert first(1000, one) == list(range(1000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        values = first(200, other)
    assert values == sorted(set(values)), "in order, none twice"
    assert values[-1] > 900
    other.close()
    status = small.service.status().job("job").trainer("Trainer 2")
    assert (status.elements, status.skipped) == (201, values[-1] + 1 - 201)


@pytest.mark.slow
def test_line_107_small_cache(small: Job) -> None:
    for at in range(20):
        values = first(200, small.reader(f"Trainer {at}"))
        assert len(values) == 200
        assert values == sorted(set(values)), "in order, none twice"


@pytest.mark.slow
def test_line_108_shuffle_dataset(cluster: MakeCluster, transfer: str) -> None:
    with Job(cluster(1).service, transfer, dsnb.Dataset.range(ENDLESS).repeat().shuffle(1000)) as job:
        one, other = (first(1000, job.reader(trainer)) for trainer in ("Trainer 1", "Trainer 2"))
    assert one == other
    assert one != sorted(one)
    assert len(set(one)) == 1000


def test_line_109_same_trainer_id(job: Job) -> None:
    one = job.reader("Trainer")
    assert first(10, one) == list(range(10))
    other = job.reader("Trainer")
    (its,) = first(1, other)
    assert its >= 10
    one.close()
    other.close()
    rest = first(20, job.reader("Trainer"))
    assert rest == [value for value in range(10, 32) if value != its][:20], "what they had and did not consume"


@pytest.mark.slow
def test_line_110_different_job_names(job: Job) -> None:
    for name in ("job 1", "job 2"):
        assert first(10, job.reader("Trainer", job_name=name)) == list(range(10))


@pytest.mark.slow
def test_line_111_dynamic_sharding(cluster: MakeCluster, transfer: str) -> None:
    with_task = endless().map(lambda x: (threading.current_thread().name, x))  # each task has a thread of its own
    with Job(cluster(2).service, transfer, with_task) as job:
        one, other = (by_task(job.reader(name, mode="distributed_epoch")) for name in ("Trainer 1", "Trainer 2"))
    assert set(one) == set(other)
    for task in one:
        both = min(len(one[task]), len(other[task]))
        assert one[task][:both] == other[task][:both], "each worker's elements are the same for both"
    values = joined(one.values())
    assert len(set(values)) == len(values), "a trainer gets no element twice"


def by_task(reader: Iterator[Any]) -> dict[str, list[int]]:
    """The next 100 elements by the task that made them; more where one of the two workers has been slow to begin."""
    got: dict[str, list[int]] = {}
    for count, (task, value) in enumerate(reader, start=1):
        got.setdefault(str(task), []).append(int(value))
        if count >= 100 and len(got) == 2:
            break
    return got


@pytest.mark.slow
def test_line_112_no_compression(job: Job) -> None:
    for trainer in ("Trainer 1", "Trainer 2"):
        assert first(10, job.reader(trainer, compression=None)) == list(range(10))


@pytest.mark.slow
def test_line_113_compression_mismatch(job: Job) -> None:
    assert first(10, job.reader("Trainer", compression="AUTO")) == list(range(10))
    with pytest.raises(InvalidArgumentError, match="Data type mismatch"):
        next(job.reader("Trainer", compression=None))


def test_line_114_requires_job_name(job: Job) -> None:
    with pytest.raises(InvalidArgumentError, match="requires named jobs"):
        job.reader("Trainer", job_name=None)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 10])
def test_line_115_finite_datasets_are_shared_pass_by_pass(job: Job, count: int) -> None:
    job.dataset = dsnb.Dataset.range(count)
    for trainer in ("Trainer 1", "Trainer 2"):
        dataset = job.distributed(trainer)
        for _ in range(3):
            assert [int(x) for x in dataset] == list(range(count))


def test_line_116_multiple_iterations_of_one_dataset(job: Job) -> None:
    dataset = job.distributed("Trainer")
    for number in range(3):
        with iter(dataset) as elements:
            assert first(10, elements) == list(range(10 * number, 10 * number + 10))


def test_line_117_no_coordinated_read(job: Job) -> None:
    with pytest.raises(InvalidArgumentError, match="does not support coordinated reads"):
        job.reader("Trainer", consumer_index=0, num_consumers=2)


@pytest.mark.slow
def test_line_118_named_job_mismatch(job: Job) -> None:
    assert first(10, job.reader("Trainer")) == list(range(10))
    with pytest.raises(InvalidArgumentError, match="Existing cross-trainer cache: <enabled>; got <disabled>"):
        job.reader(None)


@pytest.mark.parametrize("trainer_id", [None, "", 1], ids=repr)
def test_line_119_requires_non_empty_trainer_id(trainer_id: Any) -> None:
    with pytest.raises(ValueError, match="requires a non-empty trainer ID"):
        dsnb.CrossTrainerCache(trainer_id)


@pytest.mark.slow
@pytest.mark.parametrize("same_port", [True, False], ids=["the same port", "another port"])
@pytest.mark.parametrize("limit", [None, 1], ids=["ahead", "one outstanding"])
def test_line_120_worker_restart(cluster: MakeCluster, transfer: str, same_port: bool, limit: int | None) -> None:
    one = cluster(1)
    with Job(one.service, transfer) as job:
        reader = job.reader("Trainer", max_outstanding_requests=limit)
        assert first(100, reader) == list(range(100))
        with pytest.warns(DataLossWarning, match=r"worker w0 was .* \(job 'job'\): .*reading continues") as told:
            read_over_a_restart(lambda: one.restart_worker(same_port=same_port), reader, told)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1], ids=["ahead", "one outstanding"])
def test_line_121_dispatcher_restart(cluster: MakeCluster, transfer: str, limit: int | None, tmp_path: Path) -> None:
    one = cluster(1, dispatcher={"work_dir": tmp_path})
    with Job(one.service, transfer) as job:
        reader = job.reader("Trainer", max_outstanding_requests=limit)
        assert first(100, reader) == list(range(100))
        one.restart_dispatcher()
        assert first(100, reader) == list(range(100, 200))
        assert first(100, job.reader("Trainer 2")) == list(range(100))


def read_over_a_restart(restart: Callable[[], object], reader: Iterator[Any], told: pytest.WarningsRecorder) -> None:
    restart()
    before = list(itertools.takewhile(lambda value: value != 0, numbers_of(reader)))
    assert before == list(range(100, 100 + len(before))), "what was buffered here, in order"
    assert first(100, reader) == list(range(1, 101))
    wait_for(lambda: told.list or next(reader) is None, what="the loss to be announced")


def numbers_of(reader: Iterator[Any]) -> Iterator[int]:
    """The elements of a reader as plain numbers; of an endless one, not more than a window may hold."""
    for element in itertools.islice(reader, 20 << 20):
        yield int(element)


@pytest.mark.slow
def test_line_137_client_side_checks(job: Job) -> None:
    assert first(10, job.reader("Trainer")) == list(range(10))
    job.dataset = endless().filter(lambda x: x % 2 == 0)  # of unknown length: found out when it ends
    assert first(10, job.reader("Trainer", job_name="another job")) == list(range(0, 20, 2))

    job.dataset = endless()
    with pytest.raises(InvalidArgumentError, match="requires named jobs"):
        job.reader("Trainer", job_name=None)
    with pytest.raises(InvalidArgumentError, match="does not support coordinated reads"):
        job.reader("Trainer", consumer_index=0, num_consumers=1)
    repeated = job.distributed("Trainer", job_name="repeated")
    for _ in range(5):
        iter(repeated).close()


@pytest.mark.slow
def test_line_137_a_finite_dataset_of_unknown_length_ends_for_each_trainer(job: Job) -> None:
    job.dataset = dsnb.Dataset.range(10).filter(lambda _: True)
    for trainer in ("Trainer 1", "Trainer 2"):
        assert [int(x) for x in job.reader(trainer)] == list(range(10))


@pytest.mark.parametrize("trainer", ["Trainer", None], ids=["enabled", "disabled"])
def test_line_138_the_flag_is_in_the_task_that_a_worker_gets(cluster: MakeCluster, trainer: str | None) -> None:
    none = cluster(0)
    orders: list[TaskOrder] = []
    with listening_worker(none, orders), Job(none.service) as job:
        job.reader(trainer)
        wait_for(lambda: orders, what="a task")
    (order,) = orders
    assert (order.job_name, order.mode, order.cached) == ("job", "OFF", trainer is not None)


class listening_worker:  # noqa: N801 - used as a `with` statement is
    """A worker as far as the dispatcher can tell, that only notes what it is ordered to start."""

    def __init__(self, cluster: Cluster, orders: list[TaskOrder]) -> None:
        self.stream = ControlStream(
            "listening-worker",
            open_channel(cluster.address, cluster.dispatcher.token),
            SESSION,
            report=lambda number, leaving: WorkerReport(
                uid="listener", address="127.0.0.1:1", seq=number, leaving=leaving
            ),
            receive=lambda order: self._receive(order, orders),
            interval_s=0.1,
            on_failure=lambda error: None,
        )

    @staticmethod
    def _receive(order: WorkerOrder, orders: list[TaskOrder]) -> None:
        orders.extend(order.start)

    def __enter__(self) -> None:
        self.stream.start()
        self.stream.wait_connected(10.0)

    def __exit__(self, *_: object) -> None:
        self.stream.close()


@pytest.mark.slow
def test_no_trainer_sees_what_another_does_to_an_element(job: Job) -> None:
    job.dataset = endless().map(lambda x: {"image": np.full(3, x), "labels": [x, x]})
    spoiler = next(job.reader("Trainer 1"))
    del spoiler["image"]
    spoiler["labels"].append(7)
    assert not next(job.reader("Trainer 1"))["image"].flags.writeable
    element = next(job.reader("Trainer 2"))
    assert element["image"].tolist() == [0, 0, 0]
    assert element["labels"] == [0, 0]
