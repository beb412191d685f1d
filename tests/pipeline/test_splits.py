"""Splits: numbered pieces of sources, each read by exactly one task in each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.errors import InvalidArgumentError, UnimplementedError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.file_datasets import TextLineDataset
from dsnb.pipeline.operation import Operation, count_sources
from dsnb.pipeline.splits import SplitCursor, SplitProvider, shares_exactly, split_providers
from tests.pipeline.driving import Feed, by_turns, context, drain, plain


def positions(count: int, feed: Feed | None = None) -> SplitCursor:
    return SplitCursor(context(splits=None if feed is None else feed.task()), count)


def taken(source: SplitCursor, most: int) -> list[int]:
    out: list[int] = []
    while piece := source.take(most):
        assert len(piece) <= most
        out += piece
    return out


@given(st.integers(0, 30), st.integers(1, 9))
def test_without_a_feed_everything_is_read(count: int, most: int) -> None:
    assert taken(positions(count), most) == list(range(count))


@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 9))
def test_with_a_feed_what_it_hands_out_is_read_in_its_order(count: int, piece: int, most: int) -> None:
    feed = Feed([count], piece)
    first, second = positions(count, feed), positions(count, feed)
    mine = list(first.take(most))
    assert mine + taken(second, most) + taken(first, most) != [] or count == 0
    assert taken(first, 1) == taken(second, 1) == []


def test_the_end_stays_the_end() -> None:
    source = positions(1)
    assert [list(source.take(5)) for _ in range(3)] == [[0], [], []]


def test_a_source_opens_its_repetition_when_it_is_built_read_or_not() -> None:
    feed = Feed([3, 3])
    Dataset.range(3).concatenate(Dataset.range(3)).operation.build(context(splits=feed.task()))
    assert feed.opened == [0, 1]


def test_providers_are_numbered_from_left_to_right_and_count_each_use(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    lines, numbers = TextLineDataset([tmp_path / "a.txt"]), Dataset.range(4)
    ds = Dataset.zip((numbers.map(lambda x: x), (lines, numbers))).concatenate(Dataset.from_tensors((1, ("a", 2))))
    providers = split_providers(ds.operation)
    assert [(provider.source, provider.count) for provider in providers] == [
        ("range(4)", 4),
        ("text_lines(1)", 1),
        ("range(4)", 4),
        ("from_tensors", 1),
    ]
    assert len(providers) == count_sources(ds.operation)


def test_a_source_without_splits_is_named() -> None:
    class Service(Operation):
        pass

    with pytest.raises(UnimplementedError, match="the source service cannot be cut into splits"):
        split_providers(Dataset(Service()).map(lambda x: x).operation)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        SplitProvider("range", -1)


PIPELINES = {
    "range": Dataset.range(20),
    "map and filter": Dataset.range(20).map(lambda x: x + 1).filter(lambda x: x % 3),
    "batches": Dataset.range(20).batch(3).unbatch(),
    "shuffle": Dataset.range(20).shuffle(5),
    "prefetch": Dataset.range(20).prefetch(1),
    "parallel map": Dataset.range(20).map(lambda x: x, num_parallel_calls=2),
    "slices": Dataset.from_tensor_slices({"x": list(range(20))}).map(lambda e: e["x"]),
    "concatenate": Dataset.range(15).concatenate(Dataset.range(15, 20)),
    "interleave": Dataset.range(5).interleave(lambda n: Dataset.from_tensor_slices([n, n + 5, n + 10, n + 15]), 2),
    "repeat": Dataset.range(10).repeat(2),
    "generator": Dataset.from_generator(lambda: range(20)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_all_tasks_together_read_every_element_exactly_once(name: str) -> None:
    ds = PIPELINES[name]
    providers = split_providers(ds.operation)
    feed = Feed([provider.count for provider in providers], piece=2)
    sizes = tuple(provider.size for provider in providers)
    stages = [ds.operation.build(context(entropy=task, splits=feed.task(), split_sizes=sizes)) for task in range(3)]
    found = sorted(plain(x) for share in by_turns(stages) for x in share)
    assert found == sorted(plain(x) for x in ds)
    for stage in stages:
        stage.close()


# ---- splits as large as a batch

BATCHED: dict[str, Callable[[int], Dataset]] = {
    "range": Dataset.range,
    "map and prefetch": lambda n: Dataset.range(n).map(lambda x: x).prefetch(2),
    "rows": lambda n: Dataset.from_tensor_slices(list(range(n))) if n else Dataset.range(0),
    "items": lambda n: Dataset.from_random_access(range(n)),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", BATCHED)
@given(rows=st.integers(0, 60), size=st.integers(1, 7), piece=st.integers(1, 5), tasks=st.integers(1, 4))
def test_tasks_make_together_as_many_batches_as_one_and_each_of_one_split(
    source: str, rows: int, size: int, piece: int, tasks: int
) -> None:
    ds = BATCHED[source](rows).batch(size)
    (provider,) = split_providers(ds.operation)
    assert (provider.count, provider.size) == (-(-rows // size), size)
    feed = Feed([provider.count], piece)
    stages = [ds.operation.build(context(splits=feed.task(), split_sizes=(provider.size,))) for _ in range(tasks)]
    batches = [plain(batch) for task in by_turns(stages) for batch in task]
    for stage in stages:
        stage.close()
    assert sorted(batches) == [list(range(first, min(rows, first + size))) for first in range(0, rows, size)]
    assert shares_exactly(ds.operation)


@pytest.mark.parametrize(
    "dataset, sizes, exactly",
    [
        (Dataset.range(20), [1], True),
        (Dataset.range(20).batch(4).map(len), [4], True),
        (Dataset.range(20).batch(4).batch(2), [8], True),
        (Dataset.range(20).shuffle(5).enumerate().batch(4), [4], True),
        (Dataset.range(20).padded_batch(4), [4], True),
        (Dataset.range(20).batch(4).repeat(3), [4], True),
        (Dataset.range(20).batch(4).take(2), [4], False),
        (Dataset.range(20).repeat(3).batch(4), [1], False),
        (Dataset.range(20).filter(bool).batch(4), [1], False),
        (Dataset.range(20).cache().batch(4), [1], False),
        (Dataset.range(20).batch(4).unbatch(), [4], False),
        (Dataset.from_tensors([1, 2]).batch(4), [1], False),
        (Dataset.zip(Dataset.range(20).batch(4), Dataset.range(20)).batch(4), [4, 1], False),
        (Dataset.range(20).batch(5).concatenate(Dataset.range(20).batch(4)), [5, 4], False),
    ],
)
def test_splits_grow_under_operations_that_keep_the_number_of_elements(
    dataset: Dataset, sizes: list[int], exactly: bool
) -> None:
    assert [provider.size for provider in split_providers(dataset.operation)] == sizes
    assert shares_exactly(dataset.operation) is exactly


class Remaining:
    """A feed that hands out the splits that another task has not finished."""

    refused = False

    def __init__(self, splits: list[tuple[int, int]], finished: int) -> None:
        numbers = [number for first, end in splits for number in range(first, end)][finished:]
        self._splits = [(number, number + 1) for number in numbers]

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        return iter(self._splits)

    def repetition(self, provider: int) -> int:
        return 0


@given(rows=st.integers(1, 40), size=st.integers(1, 6), later=st.integers(1, 3), data=st.data())
def test_a_task_with_larger_splits_resumes_behind_any_element_twice(
    rows: int, size: int, later: int, data: st.DataObject
) -> None:
    # An operation after the batches that buffers none, so that positions inside of a split occur too.
    count = -(-rows // size)
    mine = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    given = [(number, number + 1) for number in mine]
    expected = [row for number in mine for row in range(number * size, min(rows, (number + 1) * size))]
    operation = Dataset.range(rows).map(lambda x: x).operation

    def begin(finished: int) -> Stage:
        return operation.build(context(splits=Remaining(given, finished), split_sizes=(size,)))

    stage, finished, at = begin(0), 0, 0
    for _ in range(2):
        consumed = data.draw(st.integers(0, len(expected) - at))
        assert drain(stage, [later]) == expected[at:]
        point = stage.resume_point(consumed)
        finished, at = finished + next(point.sources()).finished_splits, at + consumed
        stage = begin(finished)
        stage.begin_at(point)
    assert drain(stage) == expected[at:]
