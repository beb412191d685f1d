"""Several readers of one order: trainers of a cross-trainer cache see the same sequence, and ranks divide it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import pytest

import dsnb
from dsnb.errors import DsnbError, InvalidArgumentError
from dsnb.monitor.receipt import Receipt
from tests.support.cluster import Cluster
from tests.support.marks import slow
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for
from tests.support.workers import worker_processes

T = TypeVar("T")
COUNT = 500


def late(number: int) -> int:
    """The number, after a time that differs between workers."""
    time.sleep(random.random() * 0.001)
    return int(number)


def most_of(number: int) -> bool:
    return number % 7 != 0 and not 64 <= number < 160  # nothing of some units


DATA = dsnb.Dataset.range(COUNT).map(late).filter(most_of).with_options(dsnb.Options(deterministic=True))
EXPECTED = [number for number in range(COUNT) if most_of(number)]


def for_trainer(name: str, service: Any, on_lag: Any = "wait", **settings: Any) -> dsnb.Dataset:
    cache = dsnb.CrossTrainerCache(name, on_lag=on_lag, **settings)
    return DATA.apply(dsnb.distribute("distributed_epoch", service, job_name="shared", cross_trainer_cache=cache))


def for_rank(rank: int, ranks: int, service: Any, data: dsnb.Dataset = DATA, **settings: Any) -> dsnb.Dataset:
    settings = {"job_name": "ranks", **settings}
    return data.apply(dsnb.distribute("distributed_epoch", service, rank=rank, world_size=ranks, **settings))


def together(count: int, run: Callable[[int], T]) -> list[T]:
    """What `run` returns for 0 to `count` - 1, each on a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def by_steps(parts: list[list[T]]) -> list[T]:
    """The elements of all ranks, step by step."""
    longest = max(map(len, parts))
    return [part[step] for step in range(longest) for part in parts if step < len(part)]


def saved(elements: Any) -> Any:
    return json.loads(json.dumps(elements.state_dict()))


# ---- trainers


@pytest.mark.parametrize("workers", [slow(1), 3])
def test_all_trainers_of_a_cache_see_the_one_order_and_share_the_work(workers: int) -> None:
    with dsnb.start(workers=workers) as svc:
        reads = together(3, lambda number: numbers(for_trainer(f"t{number}", svc, start_together=3)))
        assert reads == [EXPECTED] * 3
        assert svc.status().job("shared").produced == len(EXPECTED)


@pytest.mark.slow
def test_a_killed_worker_changes_the_order_of_no_trainer() -> None:
    settings = {"reconnect_ms": 300, "worker_timeout_ms": 5_000}
    with (
        Cluster(0, dispatcher=settings) as cluster,
        worker_processes(2, cluster.dispatcher.target, cluster.dispatcher.token) as workers,
    ):
        trainers = [iter(for_trainer(f"t{number}", cluster.service)) for number in range(2)]
        found = [first(100, trainers[0]), first(30, trainers[1])]
        workers[0].kill()
        rest = together(2, lambda number: numbers(trainers[number]))
    assert [before + after for before, after in zip(found, rest, strict=True)] == [EXPECTED] * 2


@pytest.mark.slow
def test_a_trainer_resumes_alone_or_with_others_at_its_place() -> None:
    with dsnb.start(workers=2) as svc:
        elements = iter(for_trainer("a", svc))
        first(123, elements)
        position = saved(elements)

    def rest(name: str) -> list[int]:
        elements = iter(for_trainer(name, svc))
        elements.load_state_dict(position)
        return numbers(elements)

    with dsnb.start(workers=3) as svc:
        assert together(2, lambda number: rest(f"t{number}")) == [EXPECTED[123:]] * 2
        assert numbers(for_trainer("another", svc)) == EXPECTED, "a trainer without a position begins at the beginning"


# ---- ranks


@pytest.mark.parametrize("workers, ranks", [slow(1, 2), slow(3, 2), (2, 3)])
def test_rank_r_of_n_gets_element_r_of_each_n(workers: int, ranks: int) -> None:
    with dsnb.start(workers=workers) as svc:
        parts = together(ranks, lambda rank: numbers(for_rank(rank, ranks, svc)))
        assert svc.status().job("ranks").produced == len(EXPECTED), "made once for all ranks"
    steps = len(EXPECTED) // ranks
    assert parts == [EXPECTED[rank : steps * ranks : ranks] for rank in range(ranks)]


@pytest.mark.parametrize("at_end", ["drop", slow("repeat"), slow("pad")])
def test_all_ranks_take_the_same_steps(at_end: str) -> None:
    data = dsnb.Dataset.range(10).with_options(dsnb.Options(deterministic=True))
    with dsnb.start(workers=2) as svc:
        reads = [for_rank(rank, 4, svc, data, at_end=at_end) for rank in range(4)]
        lengths = [len(read) for read in reads]
        parts = together(4, lambda rank: [list(reads[rank]) for _ in range(2)])
    last: list[Any] = {"drop": [], "repeat": [8, 9, 8, 8], "pad": [(8, False), (9, False), (8, True), (8, True)]}[
        at_end
    ]
    for rank, epochs in enumerate(parts):
        full = [(number, False) if at_end == "pad" else number for number in (rank, 4 + rank)]
        assert epochs == [full + last[rank : rank + 1]] * 2
        assert len(epochs[0]) == lengths[rank]


def test_an_error_goes_to_the_rank_whose_element_it_replaces() -> None:
    def fails(number: int) -> int:
        if number in (5, 6, 7):
            raise ValueError(f"no {number}")
        return int(number)

    def read(rank: int) -> list[Any]:
        found: list[Any] = []
        elements = iter(for_rank(rank, 2, svc, data))
        while True:
            try:
                found.append(int(next(elements)))
            except StopIteration:
                return found
            except ValueError as error:
                found.append(str(error))

    data = dsnb.Dataset.range(10).map(fails).with_options(dsnb.Options(deterministic=True))
    with dsnb.start(workers=2) as svc:
        assert together(2, read) == [[0, 2, 4, "no 6", 8], [1, 3, "no 5", "no 7", 9]]


@pytest.mark.slow
def test_ranks_resume_in_another_number_at_the_same_element() -> None:
    def begin(rank: int) -> tuple[list[int], Any]:
        elements = iter(for_rank(rank, 2, svc))
        return first(60, elements), saved(elements)

    def resume(rank: int) -> list[int]:
        elements = iter(for_rank(rank, 3, svc))
        elements.load_state_dict(begun[min(rank, 1)][1])
        return numbers(elements)

    with dsnb.start(workers=2) as svc:
        begun = together(2, begin)
    with dsnb.start(workers=3) as svc:
        rest = together(3, resume)
    steps = (len(EXPECTED) - 120) // 3
    assert by_steps([part for part, _ in begun]) + by_steps(rest) == EXPECTED[: 120 + 3 * steps]


def test_a_rank_that_loops_again_goes_on_with_the_next_step() -> None:
    with dsnb.start(workers=2) as svc:

        def read(rank: int) -> list[int]:
            dataset = for_rank(rank, 2, svc)
            begin = list(islice(dataset, 50 + rank))
            return [int(number) for number in begin] + numbers(dataset)

        assert by_steps(together(2, read)) == EXPECTED[: len(EXPECTED) // 2 * 2]


@pytest.mark.slow
def test_a_killed_worker_leaves_the_ranks_in_step() -> None:
    settings = {"reconnect_ms": 300, "worker_timeout_ms": 5_000}
    with (
        Cluster(0, dispatcher=settings) as cluster,
        worker_processes(2, cluster.dispatcher.target, cluster.dispatcher.token) as workers,
    ):
        ranks = [iter(for_rank(rank, 2, cluster.service)) for rank in range(2)]
        begun = together(2, lambda rank: first(40, ranks[rank]))
        workers[1].kill()
        rest = together(2, lambda rank: numbers(ranks[rank]))
    assert by_steps(begun) + by_steps(rest) == EXPECTED[: len(EXPECTED) // 2 * 2]


def test_another_world_size_is_refused_while_the_job_is_read() -> None:
    with dsnb.start(workers=1) as svc:
        elements = iter(for_rank(0, 2, svc)).start()
        with pytest.raises(InvalidArgumentError, match="Existing world_size: <2>; got <3>"):
            next(iter(for_rank(1, 3, svc)))
        elements.close()


def test_a_rank_waits_for_those_that_have_not_joined() -> None:
    with dsnb.start(workers=1) as svc, ThreadPoolExecutor(1) as thread:
        elements = iter(for_rank(0, 2, svc))
        waiting = thread.submit(next, elements)
        wait_for(lambda: svc.status().job("ranks").trainers, what="the first rank to join")
        assert not waiting.done()
        with iter(for_rank(1, 2, svc)).start():
            assert int(waiting.result(30.0)) == EXPECTED[0]
        elements.close()


def test_positions_of_other_orders_are_refused() -> None:
    with dsnb.start(workers=1) as svc:
        elements = iter(for_trainer("a", svc))
        next(elements)
        position = saved(elements)
        elements.close()
        position["sources"]["0"]["unit"] = [10_000, 10_001]
        elements = iter(for_trainer("b", svc))
        elements.load_state_dict(position)
        with pytest.raises(DsnbError, match="does not fit the splits"):
            next(elements)


# ---- receipts


def when_over(job: str, service: Any) -> Receipt:
    """The receipt of an epoch once all its readers have left."""
    wait_for(lambda: service.receipt(job).over, what="all readers to leave")
    found: Receipt = service.receipt(job)
    return found


@pytest.mark.parametrize(
    "at_end, each, missing",
    [("drop", [2, 2, 2, 2], 2), ("repeat", [3, 3, 2, 2], 0), ("pad", [3, 3, 2, 2], 0)],
)
def test_a_receipt_counts_what_each_rank_had_of_its_own(at_end: str, each: list[int], missing: int) -> None:
    data = dsnb.Dataset.range(10).with_options(dsnb.Options(deterministic=True))
    with dsnb.start(workers=2) as svc:
        together(4, lambda rank: list(for_rank(rank, 4, svc, data, at_end=at_end)))
        found = when_over("ranks", svc)
    assert sorted((reader.reader, reader.elements) for reader in found.readers) == [
        (f"rank {rank} of 4", count) for rank, count in enumerate(each)
    ]
    assert (found.delivered, found.missing, found.twice, found.over) == (10 - missing, missing, 0, True)
    assert f"rank 1 of 4: {each[1]} elements" in repr(found)


def test_the_receipts_of_one_reader_and_of_trainers_say_each_once() -> None:
    data = dsnb.Dataset.range(COUNT).with_options(dsnb.Options(deterministic=True, receipts=True))
    with dsnb.start(workers=2) as svc:
        numbers(data.apply(dsnb.distribute("distributed_epoch", svc, job_name="one")))
        cached = [
            data.apply(
                dsnb.distribute(
                    "distributed_epoch",
                    svc,
                    job_name="shared",
                    cross_trainer_cache=dsnb.CrossTrainerCache(name, on_lag="wait", start_together=2),
                )
            )
            for name in "ab"
        ]
        together(2, lambda number: numbers(cached[number]))
        one, shared = when_over("one", svc), when_over("shared", svc)
    assert one.each_once
    assert shared.each_once
    assert (one.delivered, shared.delivered, one.digest) == (COUNT, COUNT, shared.digest)
