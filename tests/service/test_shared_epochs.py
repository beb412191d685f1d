"""Trainers share the epochs of finite data: each has every element of each epoch, once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import dsnb
from dsnb.notebook.service import DataService
from tests.support.waiting import wait_for

COUNT = 400
WINDOW = 32 * 1024
KB = np.ones(128, np.int64)  # 32 elements of 1 KB fill the window


@pytest.fixture
def service() -> Iterator[DataService]:
    with dsnb.start(workers=2, cross_trainer_cache_size_bytes=WINDOW) as service:
        yield service


def dataset() -> dsnb.Dataset:
    def make(x: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        time.sleep(0.0005)
        return x * KB

    return dsnb.Dataset.range(COUNT).map(make)


def shared(service: DataService, trainer: str, on_lag: str = "skip", mode: str = "distributed_epoch") -> dsnb.Dataset:
    cache = dsnb.CrossTrainerCache(trainer, on_lag=on_lag)  # type: ignore[arg-type]
    return dataset().apply(dsnb.distribute(mode, service, job_name="job", cross_trainer_cache=cache))


def numbers(elements: Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> list[int]:
    return [int(element[0]) for element in elements]


@pytest.mark.slow
@pytest.mark.parametrize("mode,copies", [("distributed_epoch", 1), ("parallel_epochs", 2)])
def test_five_trainers_of_any_speed_that_come_at_any_time_each_have_every_element_once(
    service: DataService, mode: str, copies: int
) -> None:
    """Speeds differ 1:20, and they join between the start and 95 % of the epoch."""
    fast = iter(shared(service, "fast", "spill", mode))
    got: dict[str, list[int]] = {"fast": []}
    places = {0.0: ("a", 0.01), 0.3: ("b", 0.005), 0.6: ("c", 0.002), 0.95: ("d", 0.0)}
    threads = []

    def run(name: str, pause: float) -> None:
        got[name] = []
        for element in shared(service, name, "spill", mode):
            got[name].append(int(element[0]))
            time.sleep(pause)

    for number, element in enumerate(fast):
        got["fast"].append(int(element[0]))
        for place in [place for place in places if number >= place * COUNT * copies]:
            threads.append(threading.Thread(target=run, args=places.pop(place)))
            threads[-1].start()
    for thread in threads:
        thread.join(60.0)
    whole = sorted([*range(COUNT)] * copies)
    assert {name: sorted(numbers) == whole for name, numbers in got.items()} == dict.fromkeys(["fast", *"abcd"], True)
    job = service.status().job("job")
    assert job is not None
    assert job.produced == COUNT * copies
    assert job.iteration == 0


@pytest.mark.slow
def test_epochs_do_not_run_into_each_other(service: DataService) -> None:
    """A fast one begins the next epoch beside a slow one, who joins it later."""
    got: dict[str, list[list[int]]] = {"fast": [], "slow": []}

    def run(name: str, pause: float) -> None:
        data = shared(service, name, "spill")
        for _ in range(3):
            got[name].append([])
            for element in data:
                got[name][-1].append(int(element[0]))
                time.sleep(pause)

    threads = [threading.Thread(target=run, args=a) for a in (("fast", 0.0), ("slow", 0.002))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    for epochs in got.values():
        assert [sorted(epoch) for epoch in epochs] == [list(range(COUNT))] * 3


def test_waiting_trainers_lose_nothing_in_memory_alone(service: DataService) -> None:
    one, other = iter(shared(service, "one", "wait")), iter(shared(service, "other", "wait"))
    first: list[int] = []
    reading = threading.Thread(target=lambda: first.extend(numbers(one)))
    reading.start()
    second = numbers(other)
    reading.join(30.0)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert all(task.spill_bytes == 0 for job in service.status().jobs for task in job.tasks)


def test_who_comes_too_late_for_a_whole_pass_begins_the_next(service: DataService) -> None:
    first = iter(shared(service, "first"))
    had = [int(next(first)[0]) for _ in range(COUNT // 2)]
    wait_for(lambda: partial(service), what="the first elements to be gone")
    assert sorted(numbers(iter(shared(service, "late", "wait")))) == list(range(COUNT))
    assert sorted([*had, *numbers(first)]) == list(range(COUNT))
    job = service.status().job("job")
    assert job is not None
    assert job.iteration == 1


def partial(service: DataService) -> bool:
    job = service.status().job("job")
    return job is not None and all(task.evicted for task in job.tasks)


@pytest.mark.slow
def test_a_pass_stays_on_disk_for_newcomers_and_goes_when_it_is_over(service: DataService) -> None:
    first = iter(shared(service, "first", "spill"))
    numbers(first)
    service.wait_until(lambda now: not any(task.spill_bytes for job in now.jobs for task in job.tasks))
    assert sorted(numbers(iter(shared(service, "second", "spill")))) == list(range(COUNT))
    job = service.status().job("job")
    assert job is not None
    assert job.iteration == 1


@pytest.mark.slow
def test_repeating_behind_the_service_reads_pass_after_pass(service: DataService) -> None:
    got = numbers(iter(shared(service, "one").repeat(3)))
    assert sorted(got) == sorted([*range(COUNT)] * 3)


@pytest.mark.parametrize("target", ["AUTO", "LOCAL"])
def test_a_trainer_that_breaks_off_gets_the_rest_and_then_whole_passes(target: str) -> None:
    with dsnb.start(workers=1) as service:
        cache = dsnb.CrossTrainerCache("one", on_lag="wait")
        mine = dsnb.Dataset.range(40).apply(
            dsnb.distribute(
                "distributed_epoch", service, job_name="job", cross_trainer_cache=cache, target_workers=target
            )
        )
        elements = iter(mine)
        begun = [int(next(elements)) for _ in range(5)]
        elements.close()
        passes = [[int(x) for x in mine] for _ in range(3)]
    assert sorted(begun + passes[0]) == list(range(40))
    assert [sorted(one) for one in passes[1:]] == [list(range(40))] * 2


def test_a_trainer_that_takes_exactly_all_elements_and_leaves_begins_the_next_epoch(service: DataService) -> None:
    data = shared(service, "exact")
    for _ in range(3):
        got = numbers(itertools.islice(data, COUNT))
        assert sorted(got) == [*range(COUNT)]


def test_a_second_reader_of_a_trainer_that_comes_at_the_end_does_not_begin_the_next_epoch(service: DataService) -> None:
    first = iter(shared(service, "both"))
    assert sorted(numbers(itertools.islice(first, COUNT))) == [*range(COUNT)]
    assert numbers(iter(shared(service, "both"))) == []
    assert numbers(first) == []
