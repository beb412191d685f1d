"""A trainer may write into the elements that it gets, past NumPy's read-only flag too: no other trainer sees that.

Not over any transfer, not in the source that a worker reads, not in the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.elements.structure import flatten
from dsnb.notebook.service import DataService
from tests.support.marks import soak
from tests.support.overwriting import WAYS, overwrite
from tests.support.reading import run_in_threads
from tests.support.transfers import TRANSFERS

Array = np.ndarray[Any, Any]

COUNT = 600
SHAPES = {"784 bytes": (28, 28), "64 KiB": (128, 512), "2.4 MB": (600, 4096)}
COUNTS = {"784 bytes": COUNT, "64 KiB": COUNT, "2.4 MB": 60}

STRUCTURES: dict[str, Callable[[Array], Any]] = {
    "an array": lambda x: x,
    "a tuple": lambda x: (x, x[:1] + 0),
    "a dict": lambda x: {"image": x, "label": int(x.flat[0])},
    "sizes that differ": lambda x: x[: 1 + int(x.flat[0]) % 2] + 0,
    "a list and text": lambda x: [x, str(x.flat[0])],
}


@pytest.fixture
def service() -> Iterator[DataService]:
    with dsnb.start(workers=1, name="ownership") as service:
        yield service


def value(number: int) -> int:
    """What element `number` is full of; never a zero."""
    return 1 + number % 250


def elements(count: int, shape: tuple[int, ...], structure: Callable[[Array], Any] = STRUCTURES["an array"]) -> Any:
    return dsnb.Dataset.range(count).map(lambda number: structure(np.full(shape, 1 + int(number) % 250, np.uint8)))


def damaged(found: list[Any]) -> list[int]:
    """The places of elements that are not what was produced."""
    return [
        place
        for place, element in enumerate(found)
        if not all(bool((leaf == value(place)).all()) for leaf in flatten(element) if isinstance(leaf, np.ndarray))
    ]


def read_in_step(iterators: dict[str, Any], count: int, way: str) -> dict[str, list[int]]:
    """Read with all trainers in turn; "writer" writes zeros into each element at once. What the others found damaged.

    The writer comes first, so that the others get each element after it was written to, and they look at theirs again
    when the writer has had the next ones.
    """
    kept: dict[str, list[Any]] = {name: [] for name in iterators}
    for _ in range(count):
        for name, iterator in sorted(iterators.items(), reverse=True):
            kept[name].append(next(iterator))
            if name == "writer":
                overwrite(kept[name][-1], way)
    assert all(not leaf.any() for leaf in flatten(kept["writer"]) if isinstance(leaf, np.ndarray))
    return {name: damaged(found) for name, found in kept.items() if name != "writer"}


def sharing(service: DataService, dataset: Any, job: str, names: list[str], transfer: str | None = None) -> Any:
    def trainer(name: str) -> Any:
        cache = dsnb.CrossTrainerCache(name, on_lag="wait")
        return iter(
            dataset.apply(
                dsnb.distribute(
                    "parallel_epochs",
                    service,
                    job_name=job,
                    cross_trainer_cache=cache,
                    data_transfer_protocol=transfer,
                )
            )
        )

    return {name: trainer(name) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_no_element_of_another_trainer_is_damaged_by_one_that_writes_into_its_own(
    service: DataService, transfer: str, size: str, way: str
) -> None:
    names = ["writer", "other", "third"]
    count = COUNTS[size]
    iterators = sharing(service, elements(count, SHAPES[size]), f"{transfer} {size} {way}", names, transfer)
    assert read_in_step(iterators, count, way) == {"other": [], "third": []}
    for iterator in iterators.values():
        iterator.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("name", STRUCTURES)
def test_that_holds_for_elements_of_any_structure(service: DataService, name: str, size: str) -> None:
    count = COUNTS[size] // 10
    dataset = elements(count, SHAPES[size], STRUCTURES[name])
    iterators = sharing(service, dataset, f"structure {name} {size}", ["writer", "other"])
    assert read_in_step(iterators, count, "__array_interface__") == {"other": []}
    for iterator in iterators.values():
        iterator.close()


def test_one_that_comes_later_gets_what_was_produced(service: DataService) -> None:
    dataset = elements(200, SHAPES["784 bytes"])
    first = sharing(service, dataset, "later", ["writer"])
    assert read_in_step(first, 200, "ctypes") == {}
    later = sharing(service, dataset, "later", ["other"])
    assert damaged(list(islice(later["other"], 200))) == []
    for iterator in (*first.values(), *later.values()):
        iterator.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", SHAPES)
def test_trainers_that_read_at_once_on_threads_damage_nothing_of_one_another(service: DataService, size: str) -> None:
    count = COUNTS[size]
    names = ["writer", "writer too", "other", "third"]
    iterators = sharing(service, elements(count, SHAPES[size]), f"threads {size}", names)

    def read(name: str) -> Callable[[], list[int]]:
        def work() -> list[int]:
            bad = []
            for place, element in enumerate(islice(iterators[name], count)):
                bad += [place] if damaged([element]) and not bool((element == value(place)).all()) else []
                if name.startswith("writer"):
                    overwrite(element)
            return bad

        return work

    assert run_in_threads([read(name) for name in names], 120.0) == [[]] * 4
    for iterator in iterators.values():
        iterator.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "size,isolation",
    [
        *((size, "thread") for size in SHAPES),
        ("64 KiB", "process"),
        soak("784 bytes", "process"),
        soak("2.4 MB", "process"),
    ],
)
def test_the_source_and_the_next_epochs_stay_as_they_were(size: str, isolation: Any) -> None:
    count = {"784 bytes": 2000, "64 KiB": 40, "2.4 MB": 8}[size]
    data = np.stack([np.full(SHAPES[size], value(number), np.uint8) for number in range(count)])
    pristine = data.copy()
    pipelines = {
        "rows": dsnb.Dataset.from_tensor_slices(data),
        "batches": dsnb.Dataset.from_tensor_slices(data).batch(4).unbatch(),
        "captured": dsnb.Dataset.range(count).map(lambda number: data[int(number)]),
        "shuffled": dsnb.Dataset.from_tensor_slices(data).shuffle(count, seed=1).map(lambda x: x),
        "recorded": dsnb.Dataset.from_tensor_slices(data).cache(),
    }
    with dsnb.start(workers=1, name="sources", isolation=isolation) as service:
        for name, pipeline in pipelines.items():
            shared = pipeline.apply(dsnb.distribute("parallel_epochs", service, job_name=name))
            for _epoch in range(2):
                found = []
                for element in shared:
                    found.append(int(element.flat[0]) if (element == element.flat[0]).all() else 0)
                    overwrite(element)
                assert sorted(found) == sorted(map(value, range(count))), name
    np.testing.assert_array_equal(data, pristine)


def test_a_function_of_the_pipeline_that_writes_does_not_change_the_source_of_its_worker() -> None:
    data = np.stack([np.full((300, 512), value(number), np.uint8) for number in range(16)])

    def darken(x: Array) -> Array:
        import ctypes

        first = int(x.flat[0])
        ctypes.memset(x.ctypes.data, 0, x.nbytes)
        return np.full(3, first)

    with dsnb.start(workers=1, name="darken") as service:
        dataset = dsnb.Dataset.from_tensor_slices(data).repeat(2).map(darken)
        shared = dataset.apply(dsnb.distribute("parallel_epochs", service, job_name="darken"))
        for _epoch in range(2):
            assert sorted(int(x[0]) for x in shared) == sorted([*map(value, range(16))] * 2)
    assert data.min() > 0
