"""`Stage.skip`: what comes behind is the same as after reading, and functions run only where they must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import as_list
from tests.pipeline.driving import context, drain

N = 23


def rows() -> Dataset:
    return Dataset.from_tensor_slices({"x": np.arange(N), "y": [f"{i}" for i in range(N)]})


def double(x: Any) -> Any:
    return x * 2


PIPELINES = {
    "range": Dataset.range(3, N, 2),
    "slices": rows(),
    "tensors": Dataset.from_tensors([1, 2]),
    "generator": Dataset.from_generator(lambda: range(N)),
    "map": Dataset.range(N).map(double),
    "parallel map": Dataset.range(N).map(double, num_parallel_calls=2),
    "filter": Dataset.range(N).filter(lambda x: x % 3 == 0),
    "batch": Dataset.range(N).batch(4),
    "batch without the rest": Dataset.range(N).batch(4, drop_remainder=True),
    "batches of batches": Dataset.range(24).batch(3).batch(2),
    "unbatch": Dataset.range(N).batch(4).unbatch(),
    "padded batch": Dataset.range(N).map(lambda x: np.full(x % 4, x)).padded_batch(4),
    "rebatch": Dataset.range(N).batch(4).rebatch([3, 2]),
    "window": Dataset.range(N).window(4, 3, 2).flat_map(lambda window: window),
    "group by window": Dataset.range(N).group_by_window(lambda x: x % 3, lambda _, window: window.batch(2), 3),
    "buckets": Dataset.range(N).bucket_by_sequence_length(int, [4, 9], [2, 3, 4]),
    "take while": Dataset.range(N).take_while(lambda x: x < 12),
    "scan": Dataset.range(N).scan(0, lambda total, x: (total + x, total)),
    "unique": Dataset.range(N).map(lambda x: x % 9).unique(),
    "shard": Dataset.range(N).shard(2, 1),
    "choose": Dataset.choose_from_datasets([Dataset.range(9), Dataset.range(20, N)], Dataset.range(2).repeat(), False),
    "sample": Dataset.sample_from_datasets([Dataset.range(9), Dataset.range(20, N)], seed=2),
    "take": Dataset.range(N).take(9),
    "take all": Dataset.range(N).take(-1),
    "skip": Dataset.range(N).skip(5),
    "skip all": Dataset.range(N).skip(-1),
    "concatenate": Dataset.range(5).concatenate(Dataset.range(7)).concatenate(Dataset.range(3)),
    "enumerate": Dataset.range(N).enumerate(100),
    "repeat": Dataset.range(5).repeat(4),
    "repeat of an empty one": Dataset.range(0).repeat(),
    "prefetch": Dataset.range(N).prefetch(3),
    "zip": Dataset.zip(Dataset.range(N), Dataset.range(9).map(double)),
    "flat map": Dataset.range(6).flat_map(Dataset.range),
    "interleave": Dataset.range(5).interleave(lambda x: Dataset.from_tensors(x).repeat(4), cycle_length=2),
    "small shuffle": Dataset.range(N).shuffle(4, seed=3),
    "full shuffle": Dataset.range(N).shuffle(100, seed=3),
    "exact shuffle": Dataset.range(N).shuffle(N),
    "shuffle of batches": Dataset.range(N).batch(2).shuffle(5).map(double),
    "shuffle of an unknown length": Dataset.range(N).filter(lambda x: x % 2 == 0).shuffle(4, seed=1),
    "shuffles around": Dataset.range(N).shuffle(5, seed=1).shuffle(3, seed=2).batch(2),
    "cache": Dataset.range(N).map(double).cache(),
}


def text(elements: list[Any]) -> list[str]:
    return [repr(element) for element in elements]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 19, 22, 23, 24, 100])
@pytest.mark.parametrize("dataset", PIPELINES.values(), ids=PIPELINES)
def test_what_comes_behind_is_what_reading_would_have_come_to(dataset: Dataset, count: int) -> None:
    stage = dataset.operation.build(context())
    wanted = drain(stage)
    stage.close()
    stage = dataset.operation.build(context())
    skipped = stage.skip(count)
    assert skipped == min(count, len(wanted))
    assert text(drain(stage, [2, 3, 1])) == text(wanted[count:])
    stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("dataset", PIPELINES.values(), ids=PIPELINES)
def test_it_can_be_skipped_in_the_middle(dataset: Dataset) -> None:
    stage = dataset.operation.build(context())
    wanted = drain(stage)
    stage.close()
    stage = dataset.operation.build(context())
    first = as_list(stage.pull(2))
    skipped = stage.skip(3)
    assert text(first + drain(stage)) == text(wanted[: len(first)] + wanted[len(first) + skipped :])
    stage.close()


def calls_of(build: Any, count: int) -> tuple[int, list[Any]]:
    calls: list[int] = []

    def noted(x: Any) -> Any:
        calls.append(int(x))
        return x

    stage = build(Dataset.range(100).map(noted)).operation.build(context())
    stage.skip(count)
    skipped = len(calls)
    rest = drain(stage)
    stage.close()
    return skipped, rest


@pytest.mark.parametrize(
    "build,allowed",
    [
        (lambda ds: ds, 0),
        (lambda ds: ds.map(double), 0),
        (lambda ds: ds.batch(3), 0),
        (lambda ds: ds.prefetch(4), 0),
        (lambda ds: ds.take(50).skip(2).enumerate(), 0),
        (lambda ds: Dataset.zip(ds, Dataset.range(99)), 0),
        (lambda ds: ds.repeat(2), 0),
        (lambda ds: ds.shuffle(7, seed=1), 7),
        (lambda ds: ds.shuffle(7).batch(2), 7),
        (lambda ds: ds.shuffle(1000), 70),
        (lambda ds: ds.filter(lambda x: True), 30),
    ],
    ids=["", "map", "batch", "prefetch", "take", "zip", "repeat", "shuffle", "shuffled", "all", "filter"],
)
def test_functions_run_only_where_they_must(build: Any, allowed: int) -> None:
    skipped, _ = calls_of(build, 30)
    assert skipped <= allowed


def test_elements_that_fail_are_left_out_with_the_others() -> None:
    def picky(x: int) -> int:
        if x in (1, 5):
            raise ValueError(f"{x}")
        return x

    stage = Dataset.range(8).map(picky).filter(lambda _: True).operation.build(context())
    assert stage.skip(3) == 3
    found = drain(stage)
    assert [x if isinstance(x, Exception) else int(x) for x in found][:2] == [3, 4]
    assert isinstance(found[2], ValueError)
    stage.close()
