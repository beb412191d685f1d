"""Who gets an element may write into it, past NumPy's read-only flag too: nothing else changes by that.

Not the source, not a recording, not another element, not what a second pass or another reader gets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb import Dataset
from dsnb.elements.structure import flatten
from tests.support.overwriting import WAYS, overwrite
from tests.support.redis import RedisServer
from tests.support.requires import require_module

Array = np.ndarray[Any, Any]

ROWS = 16
SHAPES = {"784 bytes": (28, 28), "64 KiB": (256, 256), "1.2 MB": (300, 4096)}
"""Of one element: copied with its neighbours, and by itself."""


def numbered(shape: tuple[int, ...], rows: int = ROWS) -> Array:
    """An array whose rows differ from one another and from zeros."""
    values = np.arange(1, rows + 1, dtype=np.uint8).reshape(rows, *[1] * len(shape))
    return np.ascontiguousarray(np.broadcast_to(values, (rows, *shape)))


def leaves(element: Any) -> list[Any]:
    """An element's leaves, apart from it."""
    return [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in flatten(element)]


def read(dataset: Dataset) -> list[list[Any]]:
    return [leaves(element) for element in dataset]


def read_and_overwrite(dataset: Dataset, way: str = "__array_interface__") -> list[list[Any]]:
    """What a reader gets that writes zeros into each element before it asks for the next one."""
    found = []
    for element in dataset:
        found.append(leaves(element))
        overwrite(element, way)
    return found


def assert_same(found: list[list[Any]], expected: list[list[Any]]) -> None:
    assert len(found) == len(expected)
    damaged = [
        number
        for number, (mine, its) in enumerate(zip(found, expected, strict=True))
        if not all(map(np.array_equal, mine, its))
    ]
    assert damaged == [], f"{len(damaged)} of {len(expected)} elements are damaged"


def labels(rows: int = ROWS) -> Array:
    return np.arange(rows * 4.0).reshape(rows, 4)


def bytes_of_rows(array: Array) -> list[bytes]:
    return [row.tobytes() for row in array]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SHAPES)
def test_writing_into_elements_changes_neither_the_source_nor_a_second_epoch(size: str, way: str) -> None:
    data = numbered(SHAPES[size], rows=2000 if size == "784 bytes" else 32)
    assert data.nbytes > 1 << 20, "smaller sources are copied"
    pristine = data.copy()
    dataset = Dataset.from_tensor_slices(data)
    for _epoch in range(2):
        assert_same(read_and_overwrite(dataset, way), [[row] for row in pristine])
    np.testing.assert_array_equal(data, pristine)


PIPELINES: dict[str, Callable[[Dataset], Dataset]] = {
    "as it is": lambda ds: ds,
    "batch": lambda ds: ds.batch(5),
    "batches of one": lambda ds: ds.batch(1),
    "batch of batches": lambda ds: ds.batch(4).batch(2),
    "padded_batch": lambda ds: ds.padded_batch(5),
    "batch and unbatch": lambda ds: ds.batch(5).unbatch(),
    "rebatch": lambda ds: ds.batch(5).rebatch(2),
    "rebatch to one": lambda ds: ds.batch(5).rebatch(1),
    "repeat": lambda ds: ds.repeat(3),
    "repeated batches": lambda ds: ds.batch(4).repeat(2),
    "shuffle": lambda ds: ds.shuffle(7, seed=1, reshuffle_each_iteration=False),
    "shuffle of all": lambda ds: ds.shuffle(100, seed=1, reshuffle_each_iteration=False),
    "shuffle and repeat": lambda ds: ds.shuffle(7, seed=1, reshuffle_each_iteration=False).repeat(2),
    "shuffle and batch": lambda ds: ds.shuffle(7, seed=1, reshuffle_each_iteration=False).batch(4),
    "zip with itself": lambda ds: Dataset.zip(ds, ds),
    "zip with numbers": lambda ds: Dataset.zip((Dataset.range(ROWS), {"x": ds})),
    "zip and batch": lambda ds: Dataset.zip((Dataset.range(ROWS), ds)).batch(5),
    "enumerate": lambda ds: ds.enumerate(),
    "concatenate with itself": lambda ds: ds.concatenate(ds),
    "take, skip and shard": lambda ds: ds.skip(2).take(20).shard(2, 1),
    "prefetch": lambda ds: ds.prefetch(3),
    "filter": lambda ds: ds.filter(lambda x: True),
    "take_while": lambda ds: ds.take_while(lambda x: True),
    "map that returns what it gets": lambda ds: ds.map(lambda x: x),
    "map that returns it twice": lambda ds: ds.map(lambda x: x).map(lambda x: {"x": x}).map(lambda d: {**d, "y": 1}),
    "map that returns a view": lambda ds: ds.map(lambda x: x[1:]),
    "map on threads": lambda ds: ds.map(lambda x: x[::-1], num_parallel_calls=3),
    "flat_map of windows": lambda ds: ds.window(3, shift=1).flat_map(lambda window: window),
    "batches of windows": lambda ds: ds.window(3, shift=1).flat_map(lambda window: window.batch(3)),
    "interleave": lambda ds: Dataset.range(2).interleave(lambda _: ds, cycle_length=2),
    "flat_map of a captured dataset": lambda ds: Dataset.range(2).flat_map(lambda _: ds),
    "group_by_window": lambda ds: ds.group_by_window(lambda x: 0, lambda key, window: window, window_size=4),
    "sample_from_datasets": lambda ds: Dataset.sample_from_datasets([ds, ds], seed=3),
    "choose_from_datasets": lambda ds: Dataset.choose_from_datasets([ds, ds], Dataset.range(2).repeat(20)),
    "scan": lambda ds: ds.scan(np.uint8(0), lambda state, x: (state, x)),
    "cache": lambda ds: ds.cache(),
    "cache and batch": lambda ds: ds.cache().batch(5),
    "cache and shuffle": lambda ds: ds.cache().shuffle(7, seed=1, reshuffle_each_iteration=False),
    "cache, shuffle and batch": lambda ds: ds.cache().shuffle(7, seed=1, reshuffle_each_iteration=False).batch(4),
    "cache and repeat": lambda ds: ds.cache().repeat(2),
    "cache and map": lambda ds: ds.cache().map(lambda x: x),
    "cache of batches": lambda ds: ds.batch(5).cache(),
    "cache of a map": lambda ds: ds.map(lambda x: x + 0).cache(),
    "cache of a map of dicts": lambda ds: ds.map(lambda x: {"x": x + 0, "n": x[:1] + 0}).cache(),
    "cache of ragged arrays": lambda ds: ds.map(lambda x: x[: 1 + int(x.flat[0]) % 2] + 0).cache(),
    "cache of a cache": lambda ds: ds.cache().cache(),
    "cache, zipped with itself": lambda ds: ds.cache().apply(lambda kept: Dataset.zip(kept, kept)),
}


@pytest.mark.slow
@pytest.mark.parametrize("size", ["784 bytes", "64 KiB"])
@pytest.mark.parametrize("name", PIPELINES)
def test_no_operation_hands_out_memory_that_anybody_else_has(name: str, size: str) -> None:
    data = numbered(SHAPES[size])
    pristine = data.copy()
    untouched = PIPELINES[name](Dataset.from_tensor_slices(data))
    expected = read(untouched)
    np.testing.assert_array_equal(data, pristine)
    dataset = PIPELINES[name](Dataset.from_tensor_slices(data))
    for _epoch in range(3):
        assert_same(read_and_overwrite(dataset), expected)
    np.testing.assert_array_equal(data, pristine)
    assert_same(read(dataset), expected)
    assert_same(read(untouched), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_elements_that_are_kept_are_not_changed_by_writing_into_others(name: str) -> None:
    """Of one pass: neighbours in a frame, a batch or a page, and the same row again."""
    dataset = PIPELINES[name](Dataset.from_tensor_slices(numbered((64, 1100))))  # rows that share pages
    elements = list(dataset)
    expected = list(map(leaves, elements))
    for place in range(0, len(elements), 2):
        overwrite(elements[place])
    assert_same(list(map(leaves, elements[1::2])), expected[1::2])


@pytest.mark.parametrize("size", SHAPES)
def test_a_function_that_writes_into_what_it_gets_changes_neither_source_nor_recording(size: str) -> None:
    data = numbered(SHAPES[size])
    pristine = data.copy()

    def darken(x: Array) -> Array:
        overwrite(x)
        return x

    for dataset in (
        Dataset.from_tensor_slices(data),
        Dataset.from_tensor_slices(data).cache(),
        Dataset.from_tensor_slices(data).map(lambda x: x + 0).cache(),
        Dataset.from_tensor_slices(data).shuffle(3, seed=2),
        Dataset.from_tensor_slices((data, data)).map(lambda x, y: y),
    ):
        darkened = dataset.map(darken)
        for _epoch in range(2):
            assert all(not leaf.any() for (leaf,) in read(darkened))
        assert sum(int(leaf.flat[0]) for (leaf,) in read(dataset)) == pristine[:, 0].reshape(ROWS, -1)[:, 0].sum()
    np.testing.assert_array_equal(data, pristine)


@pytest.mark.parametrize("way", WAYS)
def test_writing_into_the_element_of_from_tensors_does_not_change_it(way: str) -> None:
    image, boxes = numbered((256, 256)), labels()
    dataset = Dataset.from_tensors({"image": image, "boxes": (boxes, 7)})
    for _epoch in range(2):
        assert_same(read_and_overwrite(dataset, way), [[image, boxes, 7]])


def test_the_rows_of_records_dates_and_text_are_each_readers_own() -> None:
    records = np.array([(1, 2.0), (3, 4.0)], [("a", np.int32), ("b", np.float64)])
    dates = np.array([["2020-01-01", "2020-01-02"], ["2021-01-01", "2021-01-02"]], "M8[D]")
    text = np.array([["a", "bc"], ["d", "e"]])
    transposed = np.arange(12, dtype=np.uint8).reshape(2, 3, 2).transpose(0, 2, 1)
    empty = np.zeros((2, 0, 3))
    pristine = dates.copy()
    dataset = Dataset.from_tensor_slices((records, dates, text, transposed, empty))
    expected = [
        list(row) for row in zip(records.copy(), dates.copy(), text.copy(), transposed.copy(), empty, strict=True)
    ]
    for _epoch in range(2):
        found = []
        for element in dataset:
            found.append(leaves(element))
            overwrite(element)
            assert not element[0].flags.writeable
        assert_same(found, expected)
    np.testing.assert_array_equal(dates, pristine)


def test_a_function_that_returns_a_captured_array_or_a_part_of_it_hands_out_copies() -> None:
    table = numbered((64, 64), rows=4)
    table.flags.writeable = False
    records = bytes_of_rows(table)
    for function in (
        lambda i: table[int(i)],
        lambda i: {"whole": table, "part": table[int(i) : int(i) + 1]},
        lambda i: (i, (table[int(i)].T,)),
        lambda i: np.frombuffer(records[int(i)], np.uint8).reshape(64, 64),
        lambda i: np.broadcast_to(table[0], (2, 64, 64)),
    ):
        dataset = Dataset.range(4).map(function)
        expected = [leaves(function(i)) for i in range(4)]
        for _epoch in range(2):
            assert_same(read_and_overwrite(dataset), expected)


def test_a_function_may_keep_what_it_got_and_what_it_returned() -> None:
    """The pair of an element and the one before it: each is in two elements."""

    def pairs() -> Callable[[Array], Any]:
        before: list[Array] = []

        def pair(x: Array) -> Any:
            before.append(x)
            return x, before[max(0, len(before) - 2)]

        return pair

    data = numbered((8, 8))
    expected = [[data[i], data[max(0, i - 1)]] for i in range(ROWS)]
    assert_same(read_and_overwrite(Dataset.from_tensor_slices(data).map(pairs())), expected)


def test_a_generator_may_yield_parts_of_what_it_keeps() -> None:
    table = numbered((64, 64), rows=4)
    table.flags.writeable = False

    def generate() -> Iterator[Any]:
        yield from table
        yield np.frombuffer(records[0], np.uint8).reshape(64, 64)

    records = bytes_of_rows(table)
    dataset = Dataset.from_generator(generate)
    for _epoch in range(2):
        assert_same(read_and_overwrite(dataset), [[row] for row in (*numbered((64, 64), rows=4), table[0])])


def test_the_state_of_a_scan_is_not_changed_by_its_reader_nor_by_its_function() -> None:
    def total(state: Array, x: Any) -> Any:
        new = state + x
        return new, new

    def spoil(state: Array, x: Any) -> Any:
        new = state + x
        overwrite(state)
        return new, new

    for function in (total, spoil):
        dataset = Dataset.range(1, 5).scan(np.zeros(3), function)
        for _epoch in range(2):
            assert_same(read_and_overwrite(dataset), [[np.full(3, value)] for value in (1.0, 3.0, 6.0, 10.0)])


@pytest.fixture(params=["memory", "folder", "redis", "fsspec, a folder", "fsspec, memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Where a recording may be."""
    if request.param == "redis":
        require_module("redis")
        with RedisServer(tmp_path) as server:
            yield server.url
    elif request.param.startswith("fsspec"):
        require_module("fsspec")
        yield f"file://{tmp_path}/cache" if "folder" in request.param else f"memory:///{tmp_path.name}"
    else:
        yield None if request.param == "memory" else tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*may evict:dsnb.errors.CacheWarning")
@pytest.mark.parametrize("size", SHAPES)
def test_a_reader_that_writes_damages_no_recording_and_no_other_reader_of_it(size: str, place: Any) -> None:
    """While it is recorded, before and after a chunk is committed, and when it is replayed by several at once."""
    data = numbered(SHAPES[size])
    expected = [[row] for row in data]
    dataset = Dataset.range(ROWS).map(lambda i: data[int(i)].copy()).cache(place, chunk_bytes=3 * data[0].nbytes)
    with iter(dataset) as first, iter(dataset) as second:
        for row in data:
            mine = next(first)
            np.testing.assert_array_equal(mine, row)
            overwrite(mine)
            np.testing.assert_array_equal(next(second), row)
    for _epoch in range(2):
        assert_same(read_and_overwrite(dataset), expected)
    found: list[list[list[Any]]] = []
    readers = [threading.Thread(target=lambda: found.append(read_and_overwrite(dataset))) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(found) == 4
    for elements in found:
        assert_same(elements, expected)
    assert_same(read(dataset), expected)


def test_elements_of_a_recording_that_are_kept_stay_as_they_were_written(tmp_path: Path) -> None:
    """Over epochs, also where the reader wrote into them itself."""
    data = numbered((3, 512, 1024), rows=6)
    for place in (None, tmp_path):
        dataset = Dataset.range(6).map(lambda i: data[int(i)].copy()).cache(place)
        kept = []
        for epoch in range(4):
            for number, element in enumerate(dataset):
                np.testing.assert_array_equal(element, data[number])
                if (number + epoch) % 2:
                    overwrite(element)
                kept.append((element, leaves(element)[0]))
        for element, before in kept:
            np.testing.assert_array_equal(element, before)


def test_writable_elements_are_each_readers_own() -> None:
    data = numbered((28, 28), rows=2000)
    pristine = data.copy()
    dataset = Dataset.from_tensor_slices(data).with_options(dsnb.Options(writable=True))
    for _epoch in range(2):
        for element, row in zip(dataset, pristine, strict=True):
            np.testing.assert_array_equal(element, row)
            element[...] = 0
    np.testing.assert_array_equal(data, pristine)


def test_elements_are_read_only_for_numpy_all_the_same() -> None:
    data = numbered((28, 28), rows=2000)
    for name in ("as it is", "batch", "cache", "shuffle", "map that returns what it gets"):
        for element in PIPELINES[name](Dataset.from_tensor_slices(data)):
            assert not element.flags.writeable, name
