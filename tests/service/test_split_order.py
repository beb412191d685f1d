"""`Options(deterministic=True)` through a service: one order of the elements for any number of workers."""

from __future__ import annotations

import json
import random
import time
import warnings
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError
from tests.support.cluster import Cluster
from tests.support.marks import slow, soak
from tests.support.reading import first, numbers
from tests.support.workers import worker_process, worker_processes

ORDERED = dsnb.Options(deterministic=True)
COUNT = 500


def late(number: int) -> int:
    """The number, after a time that differs between workers."""
    time.sleep(random.random() * 0.001)
    return int(number)


def most_of(number: int) -> bool:
    return number % 7 != 0 and not 64 <= number < 160  # nothing of some units


def some(number: int) -> dsnb.Dataset:
    return dsnb.Dataset.range(number % 4).map(lambda each: 10 * number + each)


def draw(number: int, generator: np.random.Generator) -> int:
    return int(number) * 1000 + int(generator.integers(1000))


NUMBERS = dsnb.Dataset.range(COUNT).map(late)
PIPELINES = {
    "map": NUMBERS,
    "threads": dsnb.Dataset.range(COUNT).map(late, num_parallel_calls=3),
    "filter": NUMBERS.filter(most_of),
    "flat_map": NUMBERS.flat_map(some),
    "batch": NUMBERS.batch(8),
    "large batches": NUMBERS.batch(50, drop_remainder=True).map(lambda batch: batch.sum()),
    "rows": dsnb.Dataset.from_tensor_slices(np.arange(COUNT) * 3).map(late).prefetch(4),
    "items": dsnb.Dataset.from_random_access(range(COUNT)).map(late),
    "one split": dsnb.Dataset.from_generator(lambda: iter(range(40))),
    "no element": NUMBERS.filter(lambda _number: False),
    "empty": dsnb.Dataset.range(0),
}

QUICK = {"filter", "flat_map", "rows", "one split", "empty", "numbered draws"}
"""The pipelines that each run of `pytest` reads."""


def ordered(dataset: dsnb.Dataset, service: Any, **settings: Any) -> dsnb.Dataset:
    return dataset.with_options(ORDERED).apply(dsnb.distribute("distributed_epoch", service, **settings))


def digest(elements: Iterable[Any]) -> str:
    """The hash of a sequence of elements."""
    found = sha256()
    for element in elements:
        found.update(repr(np.asarray(element).tolist()).encode())
    return found.hexdigest()


@pytest.mark.parametrize("pipeline", [name if name in QUICK else slow(name) for name in PIPELINES])
@pytest.mark.parametrize("workers", [soak(1), 2, slow(5)])
def test_the_order_is_that_of_a_local_read(pipeline: str, workers: int) -> None:
    dataset = PIPELINES[pipeline]
    with dsnb.start(workers=workers) as svc:
        read = ordered(dataset, svc)
        assert digest(read) == digest(read) == digest(dataset)


RANDOM = {
    "items": dsnb.Dataset.from_random_access(range(COUNT), shuffle=True).map(late),
    "draws": NUMBERS.filter(most_of).random_map(draw),
    "numbered draws": NUMBERS.random_map(draw),
    "inner": NUMBERS.flat_map(lambda number: dsnb.Dataset.range(6).shuffle(6).map(lambda each: each + number)),
}


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", RANDOM)
def test_draws_without_a_seed_do_not_depend_on_the_workers(pipeline: str) -> None:
    found = set()
    for workers in (1, 3):
        with dsnb.start(workers=workers) as svc:
            read = ordered(RANDOM[pipeline], svc)
            found.add((digest(read), digest(read)))
    ((one, other),) = found
    assert one != other, "each epoch draws anew"


def test_an_error_takes_the_place_of_its_element() -> None:
    def fails(number: int) -> int:
        if number % 50 == 49:
            raise ValueError(f"no {number}")
        return late(number)

    got: list[Any] = []
    with dsnb.start(workers=2) as svc:
        elements = iter(ordered(dsnb.Dataset.range(200).map(fails), svc))
        while len(got) < 200:
            try:
                got.append(int(next(elements)))
            except ValueError as error:
                got.append(str(error))
        assert next(elements, None) is None
    assert got == [f"no {number}" if number % 50 == 49 else number for number in range(200)]


def test_files_come_in_their_order(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.txt").write_text("".join(f"{number} {line}\n" for line in range(number * 5)))
    files = sorted(map(str, tmp_path.glob("*.txt")))
    dataset = dsnb.TextLineDataset(files)
    with dsnb.start(workers=3) as svc:
        assert list(ordered(dataset, svc)) == list(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["grpc", "shared_memory"])
def test_processes_and_transfers_do_not_matter(transfer: str) -> None:
    dataset = NUMBERS.filter(most_of)
    with dsnb.start(workers=2, isolation="process") as svc:
        assert digest(ordered(dataset, svc, data_transfer_protocol=transfer)) == digest(dataset)


@pytest.mark.slow
def test_neither_a_killed_worker_nor_new_ones_change_the_order() -> None:
    count = 3_000
    dataset = dsnb.Dataset.range(count).map(late).filter(most_of)
    settings = {"reconnect_ms": 300, "worker_timeout_ms": 5_000}
    with Cluster(0, dispatcher=settings) as cluster, warnings.catch_warnings():
        warnings.simplefilter("error")
        target, token = cluster.dispatcher.target, cluster.dispatcher.token
        with worker_processes(2, target, token) as workers:
            elements = iter(ordered(dataset, cluster.service))
            got = first(300, elements)
            with worker_process(target, token):
                got += first(300, elements)
                workers[0].kill()
                got += first(300, elements)
                got += numbers(elements)
    assert got == [number for number in range(count) if most_of(number)]


@pytest.mark.slow
def test_scaling_down_and_up_does_not_change_the_order() -> None:
    dataset = dsnb.Dataset.range(1_500).map(late)
    with dsnb.start(workers=3) as svc:
        elements = iter(ordered(dataset, svc))
        got = first(300, elements)
        svc.scale(1)
        got += first(300, elements)
        svc.scale(4)
        got += numbers(elements)
    assert got == list(range(1_500))


@pytest.mark.parametrize("before, after", [(2, 3), slow(3, 1)])
def test_a_read_resumes_in_the_same_order_with_another_number_of_workers(before: int, after: int) -> None:
    dataset = dsnb.Dataset.range(COUNT).map(late).filter(most_of)
    with dsnb.start(workers=before) as svc:
        elements = iter(ordered(dataset, svc))
        got = first(150, elements)
        state = json.loads(json.dumps(elements.state_dict()))
    with dsnb.start(workers=after) as svc:
        elements = iter(ordered(dataset, svc))
        elements.load_state_dict(state)
        got += numbers(elements)
    assert digest(got) == digest(dataset)


@pytest.mark.parametrize(
    "dataset, culprit",
    [
        (dsnb.Dataset.range(9).shuffle(4), "shuffle(4) mixes splits"),
        (dsnb.Dataset.range(9).take(4), "take(4) mixes splits"),
        (dsnb.Dataset.range(9).filter(most_of).batch(2), "batch(2) mixes splits"),
        (dsnb.Dataset.range(9).repeat(2), "repeat(2) mixes splits"),
        (dsnb.Dataset.range(9).enumerate(), "enumerate mixes splits"),
        (dsnb.Dataset.zip((dsnb.Dataset.range(9), dsnb.Dataset.range(9))), "zip combines several sources"),
        (dsnb.Dataset.range(9).cache(), "cache"),
        (dsnb.Dataset.range(9).map(abs, num_parallel_calls=2, deterministic=False), "what is ready first"),
    ],
)
def test_what_mixes_splits_is_refused_with_its_name(dataset: dsnb.Dataset, culprit: str) -> None:
    with dsnb.start(workers=1) as svc:
        with pytest.raises(FailedPreconditionError, match="behind `distribute`") as caught:
            ordered(dataset, svc)
        assert culprit in str(caught.value)
        assert len(list(dataset.with_options(ORDERED).apply(dsnb.distribute("parallel_epochs", svc)))) > 0
        known = dsnb.register_dataset(svc, dataset.with_options(ORDERED))
        with pytest.raises(FailedPreconditionError, match="behind `distribute`"):
            dsnb.from_dataset_id("distributed_epoch", svc, known)


def test_a_registered_dataset_is_read_in_order() -> None:
    with dsnb.start(workers=2) as svc:
        known = dsnb.register_dataset(svc, NUMBERS.with_options(ORDERED))
        assert numbers(dsnb.from_dataset_id("distributed_epoch", svc, known)) == list(range(COUNT))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_outstanding_requests": 3},
    ],
)
def test_reads_without_one_order_are_refused(settings: dict[str, Any]) -> None:
    with dsnb.start(workers=1) as svc, pytest.raises(FailedPreconditionError, match="one order") as caught:
        ordered(NUMBERS, svc, **settings)
    assert f"leave {next(iter(settings))}" in str(caught.value)


def test_a_second_reader_is_refused() -> None:
    with dsnb.start(workers=1) as svc:
        elements = iter(ordered(NUMBERS, svc, job_name="shared"))
        next(elements)
        with pytest.raises(FailedPreconditionError, match="has a reader already"):
            next(iter(ordered(NUMBERS, svc, job_name="shared")))
        assert len(list(elements)) == COUNT - 1
