"""`random_map`: an element draws the same numbers wherever and whenever it is produced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.sharding import sharded
from dsnb.pipeline.splits import split_providers
from dsnb.testing import assert_resumable
from tests.pipeline.driving import Feed, by_turns, context, failing_at, outcomes, plain, run, values


def drawn(x: Any, rng: np.random.Generator) -> tuple[Any, int]:
    """An element and what was drawn for it."""
    return x, int(rng.integers(1 << 40))


def draws(elements: list[Any]) -> dict[Any, int]:
    found = {str(plain(element)): int(number) for element, number in elements}
    assert len(set(found.values())) == len(elements), "two elements drew the same"
    return found


def plus_one(x: Any) -> Any:
    return x + 1


SOURCES: dict[str, Callable[[], Dataset]] = {
    "range": lambda: Dataset.range(30),
    "map and prefetch": lambda: Dataset.range(30).map(plus_one).prefetch(3),
    "threads": lambda: Dataset.range(30).map(plus_one, num_parallel_calls=2),
    "batch": lambda: Dataset.range(30).batch(4),
    "batches of batches": lambda: Dataset.range(30).map(plus_one).batch(2).enumerate().map(lambda n, x: x).batch(3),
    "items": lambda: Dataset.from_random_access(range(30), shuffle=True, seed=2),
    "errors": lambda: Dataset.range(30).map(failing_at(3, 4, 17)),
}


def task_draws(dataset: Dataset, tasks: int, piece: int) -> dict[Any, int]:
    """What the elements of an epoch draw that tasks produce together."""
    providers = split_providers(dataset.operation)
    feed = Feed([provider.count for provider in providers], piece)
    sizes = tuple(provider.size for provider in providers)
    stages = [
        dataset.operation.build(context(entropy=number, splits=feed.task(), split_sizes=sizes))
        for number in range(tasks)
    ]
    try:
        return draws([element for share in by_turns(stages) for element in share])
    finally:
        for stage in stages:
            stage.close()


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "errors"])
@pytest.mark.parametrize("seed", [None, 5])
def test_the_number_of_tasks_and_of_splits_does_not_matter(source: str, seed: int | None) -> None:
    ds = SOURCES[source]().random_map(drawn, seed=seed)
    alone = task_draws(ds, 1, 100)
    for tasks, piece in [(1, 1), (2, 3), (3, 1)]:
        assert task_draws(ds, tasks, piece) == alone
    if seed is not None:
        assert draws(list(ds)) == alone


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("wants", [[1], [2, 1, 7], [3], [5, 2, 9]])
def test_the_lengths_of_runs_do_not_matter(source: str, wants: list[int]) -> None:
    ds = SOURCES[source]().random_map(drawn, seed=1)
    assert list(map(plain, run(ds, wants))) == list(map(plain, run(ds)))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_static_shard_draws_what_its_elements_draw_in_the_whole(index: int) -> None:
    ds = Dataset.range(30).random_map(drawn, seed=1)
    whole = draws(list(ds))
    share = draws(list(Dataset(sharded(ds.operation, "DATA", 3, index))))
    assert len(share) == 10
    assert share.items() <= whole.items()


def test_lines_of_files_draw_the_same_in_any_task(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_text("".join(f"{name}{line}\n" for line in range(5 if name != "c" else 0)))
    ds = dsnb.TextLineDataset(sorted(tmp_path.iterdir())).map(str.upper).random_map(drawn, seed=1)
    assert task_draws(ds, 1, 4) == task_draws(ds, 2, 1) == task_draws(ds, 3, 1) == draws(list(ds))


def test_records_of_files_draw_the_same_in_any_task(tmp_path: Path) -> None:
    for name in "abc":
        with dsnb.TFRecordWriter(tmp_path / name) as writer:
            for number in range(6):
                writer.write(f"{name}{number}".encode())
    ds = dsnb.TFRecordDataset(sorted(tmp_path.iterdir())).random_map(drawn, seed=1)
    assert task_draws(ds, 1, 4) == task_draws(ds, 2, 1) == draws(list(ds))
    assert_resumable(ds, positions=[0, 5, 6, 8])


@pytest.mark.parametrize("source", SOURCES)
def test_a_position_resumes_with_the_same_draws(source: str) -> None:
    if source != "errors":
        assert_resumable(SOURCES[source]().random_map(drawn), positions=[0, 1, 3, 5])
    assert_resumable(SOURCES[source]().random_map(drawn).shuffle(4).repeat(2), positions=[0, 2, 5, 9])


def test_elements_behind_a_filter_draw_by_their_own_count_and_resume() -> None:
    ds = Dataset.range(40).filter(lambda x: x % 3).random_map(drawn, seed=1)
    assert draws(list(ds)) == draws(list(ds.take(100))) != {}
    assert_resumable(ds, positions=[0, 1, 7, 26])
    # Tasks must not draw the same for different elements; `draws` checks it.
    task_draws(ds, 3, 1)


def test_epochs_and_operations_draw_differently() -> None:
    ds = Dataset.range(10).random_map(drawn, seed=1)
    first, second = values(ds), values(ds)
    assert all(one != other for one, other in zip(first, second, strict=True))
    twice = Dataset.range(10).random_map(drawn, seed=1).random_map(drawn, seed=1)
    assert all(inner[1] != outer for inner, outer in values(twice))
    repeated = values(ds.repeat(2))
    assert len({number for _, number in repeated}) == 20


def test_a_tuple_is_passed_whole() -> None:
    ds = Dataset.zip(Dataset.range(2), Dataset.range(2)).random_map(lambda pair, rng: len(pair))
    assert values(ds) == [2, 2]


def test_an_error_takes_the_place_of_its_element_and_the_others_draw_as_before() -> None:
    def picky(x: int, rng: np.random.Generator) -> int:
        if x == 3:
            raise ValueError("three")
        return int(rng.integers(1 << 40))

    whole = values(Dataset.range(8).random_map(lambda x, rng: int(rng.integers(1 << 40)), seed=1))
    found = list(map(plain, outcomes(Dataset.range(8).random_map(picky, seed=1))))
    assert found == [*whole[:3], "ValueError", *whole[4:]]


def test_a_function_of_one_argument_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="map_func"):
        Dataset.range(3).random_map(lambda x: x)  # type: ignore[misc, arg-type]


def test_streams_are_independent() -> None:
    numbers = np.array([number for _, number in Dataset.range(20_000).random_map(lambda x, rng: (x, rng.random()))])
    assert abs(numbers.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.05
