"""Section 1A: what goes in comes out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dsnb
from dsnb.errors import CancelledError
from dsnb.pipeline.graph import serialise
from tests.conformance.conftest import MakeCluster
from tests.support.processes import PythonProcess
from tests.support.reading import Gate, first, numbers, outcomes, read_alternately, run_in_threads
from tests.support.waiting import wait_for


class Box(NamedTuple):
    """In an element."""

    corner: list[Any]
    size: Any


class Table(NamedTuple):
    """Looked up on the worker."""

    rows: dict[int, Any]
    default: Any

    def lookup(self, key: int) -> Any:
        return self.rows.get(key, self.default)


def read(dataset: dsnb.Dataset, service: Any, transfer: str | None = None, **options: Any) -> list[Any]:
    """All elements of one pass in OFF mode."""
    return list(dataset.apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol=transfer, **options)))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False, None], ids=["fault tolerant", "work folder", "memory"])
def test_line_001_distribute_basic(cluster: MakeCluster, transfer: str, kept: bool | None, tmp_path: Path) -> None:
    settings = {} if kept is None else {"work_dir": tmp_path, "fault_tolerant_mode": kept}
    elements = read(dsnb.Dataset.range(10), cluster(1, dispatcher=settings).service, transfer)

    assert numbers(elements) == list(range(10))
    assert {(type(element), element.dtype) for element in elements} == {(np.int64, np.dtype(np.int64))}


def nested(index: int) -> dict[str, Any]:
    return {
        "tuple": (np.full((2, 3), index, np.float32), np.uint8(index)),
        "box": Box(corner=[np.int32(index), index], size=np.zeros((0, index), np.float16)),
        "text": (f"é{index}", b"\x00" * index, np.bool_(index % 2), np.complex64(index)),
    }


def same(one: Any, other: Any) -> None:
    """Structure, types and values; for arrays dtypes and shapes as well."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        same(list(one.values()), list(other.values()))
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            same(mine, its)
    else:
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.shape(one) == np.shape(other)


def test_line_002_structured_elements_round_trip(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.range(5).map(nested)
    elements = read(dataset, cluster(1).service, transfer)

    assert len(elements) == 5
    for index, element in enumerate(elements):
        expected = nested(index)
        expected["box"] = expected["box"]._replace(corner=[np.int32(index), np.int64(index)])  # numbers come as NumPy
        same(element, expected)


def test_line_003_rows_of_different_lengths(cluster: MakeCluster, transfer: str) -> None:
    lengths = [1, 5, 3, 2, 8]
    dataset = dsnb.Dataset.from_tensor_slices(lengths).map(lambda n: np.arange(n, dtype=np.float32))
    batches = dataset.apply(dsnb.distribute("parallel_epochs", cluster(1).service, data_transfer_protocol=transfer))

    rows = list(batches)
    assert [len(row) for row in rows] == lengths
    for row, length in zip(rows, lengths, strict=True):
        same(row, np.arange(length, dtype=np.float32))


@pytest.mark.slow
def test_line_004_captured_table(cluster: MakeCluster, transfer: str, tmp_path: Path) -> None:
    file = tmp_path / "table.txt"
    file.write_text("10\n11\n")
    from_file = dict(enumerate(map(int, file.read_text().split())))
    service = cluster(1).service

    for table in ({0: 10, 1: 11}, from_file, {k: int(v) for k, v in enumerate(dsnb.Dataset.range(10, 12))}):
        dataset = dsnb.Dataset.range(3).map(lambda key, table=table: table.get(int(key), -1))
        assert numbers(read(dataset, service, transfer)) == [10, 11, -1]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (3,)], ids=["rank 0", "rank 1"])
def test_line_005_captured_object(cluster: MakeCluster, transfer: str, shape: tuple[int, ...]) -> None:
    values = [np.full(shape, value, np.int64) for value in (10, 11, -1)]
    table = Table({0: values[0], 1: values[1]}, values[2])
    dataset = dsnb.Dataset.range(3).map(lambda key: table.lookup(int(key)))
    distributed = dataset.apply(dsnb.distribute("parallel_epochs", cluster(1).service, data_transfer_protocol=transfer))
    table.rows.clear()  # what was registered is what counts

    for element, value in zip(distributed, values, strict=True):
        np.testing.assert_array_equal(element, value)


@pytest.mark.slow
def test_line_006_captured_variable(cluster: MakeCluster, transfer: str) -> None:
    ten = np.int64(10)

    assert numbers(read(dsnb.Dataset.range(3).map(lambda x: x + ten), cluster(1).service, transfer)) == [10, 11, 12]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 10])
def test_line_007_shuffle_order(cluster: MakeCluster, transfer: str, seed: int | None) -> None:
    shuffled = dsnb.Dataset.range(100).shuffle(100, seed=seed)
    with_worker = shuffled.map(lambda x: (threading.current_thread().name, x))  # each task has a thread of its own
    orders: dict[str, list[int]] = {}
    for task, element in read(with_worker, cluster(2).service, transfer):
        orders.setdefault(task, []).append(int(element))

    one, other = orders.values()
    assert sorted(one) == sorted(other) == list(range(100))
    assert (one == other) is (seed is not None)
    assert one != list(range(100))


@pytest.mark.slow
def test_line_008_multiple_epochs(cluster: MakeCluster, transfer: str) -> None:
    options = {"data_transfer_protocol": transfer}
    dataset = dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", cluster(1).service, **options))

    assert [numbers(dataset) for _ in range(10)] == [[0, 1, 2]] * 10


@pytest.mark.slow
def test_line_009_repeated_dataset(cluster: MakeCluster, transfer: str) -> None:
    options = {"data_transfer_protocol": transfer}
    dataset = dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", cluster(1).service, **options))

    assert numbers(dataset.repeat(5)) == list(range(10)) * 5


@pytest.mark.slow
def test_line_010_concurrent_epochs(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    iterators = [
        iter(dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol=transfer)))
        for _ in range(3)
    ]

    assert [numbers(got) for got in read_alternately(iterators)] == [list(range(10))] * 3


def test_line_011_multi_worker(cluster: MakeCluster, transfer: str) -> None:
    elements = read(dsnb.Dataset.range(10), cluster(3).service, transfer)

    assert sorted(numbers(elements)) == sorted(list(range(10)) * 3)


def counting(stop: int) -> Iterator[int]:
    yield from range(stop)


def test_line_012_from_generator(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.from_generator(counting, args=(10,))

    assert numbers(read(dataset, cluster(1).service, transfer)) == list(range(10))


def test_line_012_a_generator_runs_on_each_worker_or_is_one_split(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(2).service
    dataset = dsnb.Dataset.from_generator(counting, args=(10,))
    once = dsnb.distribute("distributed_epoch", service, data_transfer_protocol=transfer)

    assert sorted(numbers(read(dataset, service, transfer))) == sorted([*range(10), *range(10)])
    assert numbers(dataset.apply(once)) == list(range(10))


def test_line_012_an_endless_generator_is_called_no_further_than_needed(cluster: MakeCluster, transfer: str) -> None:
    def powers() -> Iterator[np.ndarray[Any, Any]]:
        buffer = np.zeros(1 << 18, np.float32)  # the same one again and again
        while True:
            buffer += 1
            yield buffer

    options: dict[str, Any] = {"data_transfer_protocol": transfer, "max_outstanding_requests": 2}
    cluster_of_one = cluster(1)
    dataset = dsnb.Dataset.from_generator(powers)
    with iter(dataset.apply(dsnb.distribute("parallel_epochs", cluster_of_one.service, **options))) as elements:
        assert [(float(e[0]), float(e[-1])) for e in islice(elements, 20)] == [(n, n) for n in range(1, 21)]
        (job,) = cluster_of_one.status().jobs
        assert job.produced <= 20 + 2 + (16 << 20 >> 20) + 2  # read, allowed, read ahead in bytes, in the making


def test_line_012_an_error_of_a_generator_stands_at_its_place(cluster: MakeCluster, transfer: str) -> None:
    def breaks() -> Iterator[int]:
        yield from range(5)
        raise OSError("the camera is gone")

    options = {"data_transfer_protocol": transfer}
    dataset = dsnb.Dataset.from_generator(breaks)
    *elements, error = outcomes(iter(dataset.apply(dsnb.distribute("parallel_epochs", cluster(1).service, **options))))

    assert numbers(elements) == list(range(5))
    assert isinstance(error, OSError)
    assert str(error) == "the camera is gone"
    assert "in breaks" in str(error.__cause__)


@pytest.mark.slow
def test_line_012_a_generator_of_a_cell_runs_in_another_process(cluster: MakeCluster) -> None:
    import os

    def here() -> Iterator[tuple[int, int]]:
        for index in range(10):
            yield os.getpid(), index

    service = cluster(0)
    arguments = ["-m", "dsnb", "worker", "--dispatcher", service.address]
    with PythonProcess(arguments, env={"DSNB_TOKEN": service.dispatcher.token}) as worker:
        worker.wait_for_line("worker ready")
        elements = read(dsnb.Dataset.from_generator(here), service.service)
        assert [(int(pid), int(index)) for pid, index in elements] == [(worker.pid, index) for index in range(10)]
        worker.terminate()
        assert worker.wait_for_exit() == 0


def test_line_013_max_outstanding_requests(cluster: MakeCluster, transfer: str) -> None:
    elements = read(dsnb.Dataset.range(10), cluster(3).service, transfer, max_outstanding_requests=1)

    assert sorted(numbers(elements)) == sorted(list(range(10)) * 3)


@pytest.mark.slow
@pytest.mark.usefixtures("patient_status")
def test_line_013_no_more_is_outstanding_than_allowed(cluster: MakeCluster, transfer: str) -> None:
    three = cluster(3)
    options: dict[str, Any] = {"data_transfer_protocol": transfer, "max_outstanding_requests": 4}
    dataset = dsnb.Dataset.range(100).apply(dsnb.distribute("parallel_epochs", three.service, **options))
    with iter(dataset) as elements:
        for read_so_far in range(1, 31):
            next(elements)
            sent = sum(worker.sent_elements for worker in three.status().workers)
            assert read_so_far <= sent <= read_so_far + 4


@pytest.mark.slow
def test_line_015_no_sharding_policy(cluster: MakeCluster, transfer: str) -> None:
    options = {"data_transfer_protocol": transfer}
    off = dsnb.distribute(dsnb.ShardingPolicy.OFF, cluster(1).service, **options)

    assert numbers(dsnb.Dataset.range(20).apply(off)) == list(range(20))


def test_line_016_distribute_from_interleave(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service

    def inner(index: Any) -> dsnb.Dataset:
        dataset = dsnb.Dataset.range(10 * int(index), 10 * int(index) + 2)
        return dataset.apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol=transfer))

    assert numbers(dsnb.Dataset.range(2).interleave(inner, cycle_length=2)) == [0, 10, 1, 11]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "array", "text"])
def test_line_017_large_definition(cluster: MakeCluster, transfer: str, kind: str) -> None:
    size = 8 << 20
    ballast: Any = {"bytes": bytes(size), "array": np.ones(size, np.uint8), "text": ["x" * 1024, "y" * size]}[kind]
    dataset = dsnb.Dataset.range(3).map(lambda x: x + len(ballast))
    graph = serialise(dataset.operation)
    assert len(graph.definition) + sum(blob.nbytes for blob in graph.blobs) >= size

    assert numbers(read(dataset, cluster(1).service, transfer)) == [len(ballast) + x for x in range(3)]


def test_line_018_batch_does_not_drop_remainder(cluster: MakeCluster, transfer: str) -> None:
    elements = read(dsnb.Dataset.range(10).batch(100, drop_remainder=False), cluster(2).service, transfer)

    assert [batch.tolist() for batch in elements] == [list(range(10))] * 2


@pytest.mark.slow
def test_line_019_undetermined_order_lets_later_elements_pass_a_slow_one(
    cluster: MakeCluster, transfer: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)

    def slow_first(x: Any) -> Any:
        if x == 0:
            gate.wait()
        return x

    dataset = dsnb.Dataset.range(10).map(slow_first, num_parallel_calls=2)
    dataset = dataset.with_options(dsnb.Options(deterministic=False))
    options = {"data_transfer_protocol": transfer}
    elements = iter(dataset.apply(dsnb.distribute("parallel_epochs", cluster(1).service, **options)))
    early = first(9, elements)
    gate.open()

    assert early == list(range(1, 10))
    assert numbers(elements) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [None, 2], ids=["one by one", "parallel"])
def test_line_022_dropping_an_iterator_cancels_what_is_in_flight(
    cluster: MakeCluster, transfer: str, tmp_path: Path, parallel: int | None
) -> None:
    gate = Gate(tmp_path)

    def slow(x: Any) -> Any:
        gate.wait()
        return x

    one = cluster(1)
    dataset = dsnb.Dataset.range(100).map(slow, num_parallel_calls=parallel)
    elements = iter(
        dataset.apply(dsnb.distribute("parallel_epochs", one.service, data_transfer_protocol=transfer))
    ).start()
    wait_for(lambda: gate.visits() == (parallel or 1), what="the function to be called")

    began = time.monotonic()
    del elements
    wait_for(lambda: not one.status().jobs and not one.status().workers[0].tasks, what="the job to go", timeout=10.0)
    assert time.monotonic() - began < 10.0

    gate.open()
    wait_for(lambda: not task_threads(), what="the function to be left alone")
    assert gate.visits() == (parallel or 1), "no further element was begun"


def task_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dsnb-task")]


def test_line_022_closing_an_iterator_wakes_who_waits_for_it(
    cluster: MakeCluster, transfer: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)

    def slow(x: Any) -> Any:
        gate.wait()
        return x

    options = {"data_transfer_protocol": transfer}
    elements = iter(
        dsnb.Dataset.range(100).map(slow).apply(dsnb.distribute("parallel_epochs", cluster(1).service, **options))
    )

    def close() -> float:
        wait_for(gate.visits, what="the function to be called")
        began = time.monotonic()
        elements.close()
        return time.monotonic() - began

    def wait() -> float:
        with pytest.raises((CancelledError, StopIteration)):
            next(elements)
        return time.monotonic()

    seconds, _ = run_in_threads([close, wait], timeout=20.0)
    assert seconds < 1.9  # without an answer it would wait for 2 s
    gate.open()
