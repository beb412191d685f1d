"""Splits: numbered pieces of sources, each read by exactly one task in each pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.errors import InvalidArgumentError, UnimplementedError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.file_datasets import TextLineDataset
from dsnb.pipeline.operation import Operation, count_sources
from dsnb.pipeline.splits import SplitCursor, SplitProvider, split_providers
from tests.pipeline.driving import Feed, by_turns, context, plain


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
    feed = Feed([provider.count for provider in split_providers(ds.operation)], piece=2)
    stages = [ds.operation.build(context(entropy=task, splits=feed.task())) for task in range(3)]
    found = sorted(plain(x) for share in by_turns(stages) for x in share)
    assert found == sorted(plain(x) for x in ds)
    for stage in stages:
        stage.close()
