from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import as_list
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.split_order import UnitStage, order_obstacle
from dsnb.pipeline.splits import split_providers


class Feed:
    """Gives ranges of splits, and nothing else."""

    refused = False

    def __init__(self, *ranges: tuple[int, int]) -> None:
        self._ranges = ranges

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        del provider, repetition
        return iter(self._ranges)

    def repetition(self, provider: int) -> int:
        del provider
        return 0


def stage_of(dataset: Dataset, *ranges: tuple[int, int]) -> UnitStage:
    sizes = tuple(provider.size for provider in split_providers(dataset.operation))
    return UnitStage(dataset.operation, BuildContext(entropy=1, splits=Feed(*ranges), split_sizes=sizes))


def drained(stage: UnitStage, want: int = 7) -> list[int]:
    found: list[int] = []
    while len(run := stage.pull(want)):
        found += map(int, as_list(run))
    stage.close()
    return found


def draw(number: Any, generator: np.random.Generator) -> Any:
    return number * 1000 + int(generator.integers(1000))


UNITS = ((0, 32), (32, 64), (64, 96))


def from_split(first: int) -> list[tuple[int, int]]:
    return [unit for unit in UNITS if unit[0] >= first]


EVEN = Dataset.range(1000).filter(lambda number: number % 2 == 0)


def test_each_range_is_a_unit_and_is_marked() -> None:
    stage = stage_of(EVEN, (0, 64), (96, 104))
    marks: list[tuple[tuple[int, int], int, bool]] = []
    stage.on_unit = lambda unit, made, ended: marks.append((unit, made, ended))
    assert drained(stage) == [*range(0, 64, 2), *range(96, 104, 2)]
    assert marks == [((0, 64), 0, False), ((0, 64), 32, True), ((96, 104), 32, False), ((96, 104), 36, True)]


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.range(40).random_map(draw),
        Dataset.range(40).batch(4).random_map(draw).map(np.sum),
        Dataset.range(40).filter(lambda number: number % 3 > 0).random_map(draw),
        Dataset.range(40).flat_map(lambda number: Dataset.range(5).shuffle(5).map(lambda each: 10 * number + each)),
        Dataset.from_tensor_slices([[f"line {number}"] for number in range(40)]).random_map(
            lambda _line, rng: draw(0, rng)
        ),
    ],
)
def test_draws_do_not_depend_on_where_units_begin(dataset: Dataset) -> None:
    splits = split_providers(dataset.operation)[0].count
    whole = drained(stage_of(dataset, (0, splits)))
    for cut in (1, 3, 7):
        assert drained(stage_of(dataset, (0, cut), (cut, splits))) == whole
    assert drained(stage_of(dataset, *((split, split + 1) for split in range(splits)))) == whole


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40, 48])
def test_another_stage_continues_anywhere(count: int) -> None:
    stage = stage_of(EVEN, *UNITS)
    before = drained(stage)
    point = stage.resume_point(count)
    rest = stage_of(EVEN, *from_split(point.finished_splits))
    rest.begin_at(point.without_finished_splits())
    assert before[:count] + drained(rest) == before


def test_a_stage_that_continued_knows_its_own_resume_points() -> None:
    stage = stage_of(EVEN, *UNITS)
    before = drained(stage)
    point = stage.resume_point(20)
    second = stage_of(EVEN, *from_split(point.finished_splits))
    second.begin_at(point.without_finished_splits())
    drained(second)
    again = second.resume_point(13)
    third = stage_of(EVEN, *from_split(point.finished_splits + again.finished_splits))
    third.begin_at(again.without_finished_splits())
    assert before[:33] + drained(third) == before


@pytest.mark.parametrize(
    "dataset", [EVEN.prefetch(2), EVEN.flat_map(Dataset.range), Dataset.range(9).batch(2).unbatch()]
)
def test_what_keeps_to_one_split_has_no_obstacle(dataset: Dataset) -> None:
    assert order_obstacle(dataset.operation) == ""
