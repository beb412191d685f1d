"""Section 1I: without the cache, the readers of a task share one pass, first come, first served."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.errors import CancelledError, DsnbWarning, InvalidArgumentError, UnavailableError
from tests.conformance.conftest import MakeCluster
from tests.conformance.tasks import END, TaskBench, numbers
from tests.support.reading import Gate, joined, outcomes, run_in_threads
from tests.support.waiting import wait_for


def aborts(index: Any) -> Any:
    """Line 142's source: a good one, an invalid argument, a good one, aborted, and so on."""
    if index == 1:
        raise InvalidArgumentError("invalid argument")
    if index == 3:
        raise UnavailableError("aborted")
    return index


# --------------------------------------------------------------------------------------------------- through a service


@pytest.mark.slow
def test_line_139_get_next(cluster: MakeCluster, transfer: str) -> None:
    distribute = dsnb.distribute("parallel_epochs", cluster(1).service, data_transfer_protocol=transfer)
    for count in (10, 0):
        elements = iter(dsnb.Dataset.range(count).apply(distribute))
        assert numbers(elements) == list(range(count))
        for _ in range(5):
            with pytest.raises(StopIteration):
                next(elements)


@pytest.mark.slow
def test_line_141_concurrent_readers(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    options: dict[str, Any] = {"data_transfer_protocol": transfer, "job_name": "job"}
    dataset = dsnb.Dataset.range(1000)
    # All join before one reads: the first may read everything before the last has begun.
    readers = [iter(dataset.apply(dsnb.distribute("parallel_epochs", service, **options))).start() for _ in range(10)]

    def read(reader: Iterator[Any]) -> list[int]:
        got = numbers(reader)
        assert [next(reader, "the end") for _ in range(5)] == ["the end"] * 5
        return got

    got = run_in_threads([lambda reader=reader: read(reader) for reader in readers])
    assert sorted(joined(got)) == list(range(1000))


def test_line_142_error(cluster: MakeCluster, transfer: str) -> None:
    options = {"data_transfer_protocol": transfer}
    dataset = dsnb.Dataset.range(6).map(aborts)
    got = outcomes(iter(dataset.apply(dsnb.distribute("parallel_epochs", cluster(1).service, **options))))

    assert [got[at] for at in (0, 2, 4, 5)] == [0, 2, 4, 5]
    assert (type(got[1]), got[1].what) == (InvalidArgumentError, "invalid argument")
    assert (type(got[3]), got[3].what) == (UnavailableError, "aborted")
    assert len(got) == 6


# ------------------------------------------------------------------------------------------------------- on one task


def test_line_139_get_next_of_a_task() -> None:
    with TaskBench(dsnb.Dataset.range(10)) as bench:
        reader = bench.reader()
        assert numbers(reader.rest()) == list(range(10))
        assert [reader.get() for _ in range(5)] == [END] * 5
        assert bench.reader().get() is END, "also for one who comes later"
        assert bench.ended == ["4000"]


def test_line_139_empty_dataset_of_a_task() -> None:
    with TaskBench(dsnb.Dataset.range(0)) as bench:
        reader = bench.reader()
        assert [reader.get() for _ in range(5)] == [END] * 5


@pytest.mark.parametrize("read_before", [0, 10], ids=["at once", "in the middle"])
def test_line_140_cancel(read_before: int) -> None:
    with TaskBench(dsnb.Dataset.range(1000)) as bench:
        reader = bench.reader()
        assert numbers(reader.get() for _ in range(read_before)) == list(range(read_before))
        bench.task.stop(CancelledError("cancelled"))
        for _ in range(5):
            with pytest.raises(CancelledError, match="cancelled"):
                reader.get()


def test_line_141_concurrent_readers_of_a_task() -> None:
    with TaskBench(dsnb.Dataset.range(1000)) as bench:
        readers = [bench.reader() for _ in range(10)]
        got = run_in_threads([lambda reader=reader: numbers(reader.rest()) for reader in readers])
        assert sorted(joined(got)) == list(range(1000))
        assert all(part == sorted(part) for part in got), "each sees its share in order"
        assert {reader.get() for reader in readers for _ in range(5)} == {END}


def test_line_142_error_of_a_task() -> None:
    with TaskBench(dsnb.Dataset.range(5).map(aborts)) as bench:
        reader = bench.reader()
        assert reader.get() == 0
        with pytest.raises(InvalidArgumentError, match="invalid argument"):
            reader.get()
        assert reader.get() == 2
        with pytest.raises(UnavailableError, match="aborted"):
            reader.get()
        assert numbers(reader.rest()) == [4]


@pytest.mark.parametrize("ahead,count", [(1, 2), (2, 10), (10, 2)])
@pytest.mark.parametrize("readers", [1, 10])
def test_line_143_nothing_is_lost_or_doubled(ahead: int, count: int, readers: int) -> None:
    with TaskBench(dsnb.Dataset.range(count), ahead=8 * ahead) as bench:
        clients = [bench.reader() for _ in range(readers)]
        got = run_in_threads([lambda client=client: numbers(client.rest()) for client in clients])
    if readers == 1:
        assert got == [list(range(count))]
    assert Counter(joined(got)) == Counter(range(count))


@pytest.mark.parametrize("ahead", [1, 2, 10])
def test_line_143_the_producer_waits_when_full(ahead: int, tmp_path: Path) -> None:
    made = tmp_path / "made"

    def noted(index: Any) -> Any:
        with made.open("ab") as file:
            file.write(b".")
        return index

    # Each element is slower than the time after which a frame is closed, so each one is a frame.
    dataset = dsnb.Dataset.range(1000).map(noted).batch(1)
    with TaskBench(dataset, ahead=8 * ahead) as bench:
        reader = bench.reader()
        reader.get()
        wait_for(lambda: bench.task.report().head, what="the producer to begin")
        settled = wait_for_rest(bench)
        assert settled * 8 <= 8 * ahead + 8 + (1 << 20), "no more than allowed, and one frame"
        assert made.stat().st_size < 1000


def wait_for_rest(bench: TaskBench) -> int:
    """Wait until the producer stands still; how many elements it has made."""
    looks: list[int] = []

    def still() -> bool:
        looks.append(bench.task.report().head)
        return len(looks) > 20 and len(set(looks[-20:])) == 1

    wait_for(still, what="the producer to stand still")
    return looks[-1]


def test_line_143_a_reader_waits_when_empty_and_is_woken_by_an_element(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def late() -> Iterator[int]:
        gate.wait()
        yield 7

    with TaskBench(dsnb.Dataset.from_generator(late)) as bench:
        reader = bench.reader()

        def opens() -> int:
            wait_for(gate.visits, what="the producer to begin")
            gate.open()
            return 0

        assert run_in_threads([lambda: int(reader.get()), opens]) == [7, 0]


def test_line_143_cancelling_wakes_reader_and_producer(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def blocked() -> Iterator[int]:
        gate.wait()
        yield 0

    error = CancelledError("cancelled")
    with TaskBench(dsnb.Dataset.from_generator(blocked)) as bench:
        reader = bench.reader()
        threading.Timer(0.1, bench.task.stop, [error]).start()
        with pytest.raises(CancelledError) as caught:
            reader.get()
        assert caught.value is error
        bench.task.stop(CancelledError("cancelled again"))  # a task is stopped once: the first word stays
        with pytest.raises(CancelledError) as caught:
            reader.get()
        assert caught.value is error
        gate.open()

    with TaskBench(dsnb.Dataset.range(1_000_000_000), ahead=8) as full:
        full.reader().get()
        wait_for_rest(full)
        full.task.stop(error)
        assert full.task.join(2.0), "the producer that waited for room has ended"


@pytest.mark.slow
def test_what_a_reader_leaves_goes_to_the_next(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service
    options: dict[str, Any] = {"data_transfer_protocol": transfer, "job_name": "job"}
    dataset = dsnb.Dataset.range(100)
    one, other, late = (dataset.apply(dsnb.distribute("parallel_epochs", service, **options)) for _ in range(3))
    with iter(one) as elements:
        got = numbers(next(elements) for _ in range(10))
    assert sorted(got + numbers(other)) == list(range(100))
    with pytest.warns(DsnbWarning, match="has already been read to its end"):
        assert numbers(late) == []
