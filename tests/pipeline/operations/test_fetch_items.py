"""`from_random_access`: each item once, in order or in a computed random order, errors in their places."""

from __future__ import annotations

import tracemalloc
from collections import UserDict, namedtuple
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsnb
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.splits import split_providers
from dsnb.testing import assert_resumable
from tests.pipeline.driving import Feed, by_turns, context, outcomes, plain, run, values
from tests.support.requires import require_module


class Squares:
    """A map-style dataset that counts its calls."""

    def __init__(self, count: int, bad: tuple[int, ...] = ()) -> None:
        self.count = count
        self.bad = bad
        self.calls: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.calls.append(index)
        if index in self.bad:
            raise IndexError(f"{index} is bad")
        return index * index


class Batched(Squares):
    """One that fetches several items with one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls.append(list(indices))
        if set(indices) & set(self.bad):
            raise RuntimeError("one of them is bad")
        return [index * index for index in indices]


@pytest.mark.parametrize("kind", [Squares, Batched])
@given(st.integers(0, 60), st.sets(st.integers(0, 60)), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_an_error_takes_the_place_of_its_item(kind: type[Squares], count: int, bad: set[int], wants: list[int]) -> None:
    ds = Dataset.from_random_access(kind(count, tuple(bad)))
    expected = ["IndexError" if index in bad else index * index for index in range(count)]
    assert [plain(x) for x in run(ds, wants)] == expected
    assert ds.cardinality() == len(ds) == count


def test_a_run_is_fetched_with_one_call_and_indices_are_python_numbers() -> None:
    items = Batched(10)
    assert run(Dataset.from_random_access(items), [8]) == [index * index for index in range(10)]
    assert items.calls == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]
    assert {type(index) for call in items.calls for index in call} == {int}


def test_a_batched_call_of_the_wrong_length_is_an_error() -> None:
    class Short(Squares):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [0]

    first = next(error for error in run(Dataset.from_random_access(Short(3)), [3]) if isinstance(error, Exception))
    assert isinstance(first, InvalidArgumentError)
    assert "returned 1 items for 3 indices" in str(first)


def test_skipped_items_are_not_fetched() -> None:
    items = Squares(100)
    stage = Dataset.from_random_access(items).operation.build(context())
    assert stage.skip(97) == 97
    assert list(stage.pull(5)) == [9409, 9604, 9801]
    assert items.calls == [97, 98, 99]


@pytest.mark.parametrize(
    "dataset, said",
    [
        (iter([1]), "no __getitem__"),
        ({0: 1}, "not found by the numbers"),
        ("text", "not found by the numbers"),
        (3, "no __getitem__"),
        (np.array(2.0), "cannot be read"),
        (type("Negative", (), {"__len__": lambda _: -1, "__getitem__": lambda _, index: index})(), "cannot be read"),
        (type("NoLength", (), {"__getitem__": lambda _, index: index})(), "no __len__"),
    ],
)
def test_what_has_no_items_by_number_is_refused(dataset: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Dataset.from_random_access(dataset)


def test_a_dataset_that_changed_its_length_is_one_error_and_then_the_end() -> None:
    rows = [1, 2, 3]
    ds = Dataset.from_random_access(rows)
    rows.append(4)
    (error,) = outcomes(ds)
    assert isinstance(error, InvalidArgumentError)
    assert "had 3 items when from_random_access was called, and has 4 now" in str(error)


# ---- what items become

Pair = namedtuple("Pair", "image label")  # noqa: PYI024 - users have these


def test_images_and_lists_of_numbers_become_arrays_also_for_functions() -> None:
    require_module("PIL")
    from PIL import Image

    image = Image.new("RGB", (3, 2), (1, 2, 3))
    rows = [Pair(image, [1, 2, 3]), Pair(image, [4, 5, 6])]
    seen: list[Any] = []
    ds = Dataset.from_random_access(rows).map(lambda pair: seen.append(pair) or pair)
    first, _ = ds
    assert type(first).__name__ == "Pair"
    assert first.image.shape == (2, 3, 3)
    assert first.label.tolist() == [1, 2, 3]
    assert all(isinstance(leaf, np.ndarray) for leaf in seen[0])


@pytest.mark.parametrize(
    "item, expected",
    [
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ([1.5, 2.5], np.array([1.5, 2.5])),
        ([True, False], np.array([True, False])),
    ],
)
def test_a_list_of_numbers_of_one_type_is_an_array(item: Any, expected: Any) -> None:
    (element,) = Dataset.from_random_access([item])
    assert element.dtype == expected.dtype
    np.testing.assert_array_equal(element, expected)


@pytest.mark.parametrize("item", [[1, 2.5], ["a", "b"], [[1], [2, 3]], [1, "a"]])
def test_other_lists_stay_lists(item: Any) -> None:
    (element,) = Dataset.from_random_access([item])
    assert type(element) is list
    assert plain(element) == item


def test_the_mappings_of_tokenizers_become_dicts() -> None:
    assert values(Dataset.from_random_access([UserDict(ids=[1, 2])])) == [{"ids": [1, 2]}]


def test_rows_of_an_array_and_of_a_memory_map_are_copies(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(3, 2)
    mapped = np.memmap(tmp_path / "rows", np.float64, "w+", shape=(3, 2))
    mapped[:] = array
    for rows in (array, mapped, list(array)):
        found = list(Dataset.from_random_access(rows).with_options(dsnb.Options(writable=True)))
        np.testing.assert_array_equal(found, array)
        found[0][:] = 9
        assert rows[0][0] == 0
        assert {type(row) for row in found} == {np.ndarray}


# ---- order


def test_shuffled_epochs_differ_and_repeat_with_a_seed() -> None:
    ds = Dataset.from_random_access(range(50), shuffle=True, seed=4)
    first, second = values(ds), values(ds)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    again = Dataset.from_random_access(range(50), shuffle=True, seed=4)
    assert [values(again), values(again)] == [first, second]
    assert values(ds.repeat(2))[:50] != values(ds.repeat(2))[50:]


def test_without_a_seed_two_runs_differ() -> None:
    assert values(Dataset.from_random_access(range(50), shuffle=True)) != values(
        Dataset.from_random_access(range(50), shuffle=True)
    )


@pytest.mark.parametrize("seed", [None, 3])
def test_one_order_for_all_epochs_if_asked_for(seed: int | None) -> None:
    ds = Dataset.from_random_access(range(50), shuffle=True, seed=seed, reshuffle_each_iteration=False)
    assert values(ds) == values(ds) != list(range(50))


@pytest.mark.parametrize("seed", [None, 3])
@given(piece=st.integers(1, 9), tasks=st.integers(1, 4))
def test_tasks_that_share_splits_read_each_index_once_in_each_repetition(
    seed: int | None, piece: int, tasks: int
) -> None:
    ds = Dataset.from_random_access(range(30), shuffle=True, seed=seed).repeat(2)
    (provider,) = split_providers(ds.operation)
    feed = Feed([provider.count], piece=piece)
    # Each task has a root of randomness of its own, as on workers.
    stages: list[Stage] = [ds.operation.build(context(entropy=number, splits=feed.task())) for number in range(tasks)]
    assert sorted(chain.from_iterable(by_turns(stages))) == sorted([*range(30)] * 2)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_position_resumes_exactly(shuffle: bool) -> None:
    ds = Dataset.from_random_access(Squares(12), shuffle=shuffle, seed=1)
    assert_resumable(ds)
    assert_resumable(ds.repeat(2).shuffle(5, seed=2).batch(4))


def test_the_random_order_of_a_huge_dataset_takes_no_memory_and_no_time_to_begin() -> None:
    ds = Dataset.from_random_access(Squares(10**9), shuffle=True, seed=2)
    tracemalloc.start()
    try:
        found = list(islice(ds, 2000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len({int(x) for x in found}) == 2000
    assert peak < 8 << 20


def test_a_buffer_behind_it_shuffles_as_behind_any_source() -> None:
    ds = Dataset.from_random_access(range(50)).shuffle(5, seed=1)
    assert values(ds) == values(Dataset.range(50).shuffle(5, seed=1)) != list(range(50))
