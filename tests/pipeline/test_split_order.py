from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import as_list
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.split_order import UNIT_ELEMENTS, UnitStage, order_obstacle, splits_per_unit
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


EVEN = Dataset.range(1000).filter(lambda number: number % 2 == 0)


def test_ranges_are_cut_into_units_and_marked() -> None:
    stage = stage_of(EVEN, (0, 2 * UNIT_ELEMENTS), (3 * UNIT_ELEMENTS, 3 * UNIT_ELEMENTS + 8))
    marks: list[tuple[int, int, bool]] = []
    stage.on_unit = lambda unit, delivered, ended: marks.append((unit, delivered, ended))
    found = drained(stage)
    assert found == [*range(0, 2 * UNIT_ELEMENTS, 2), *range(3 * UNIT_ELEMENTS, 3 * UNIT_ELEMENTS + 8, 2)]
    half = UNIT_ELEMENTS // 2
    assert marks == [
        (0, 0, False),
        (0, half, True),
        (1, half, False),
        (1, 2 * half, True),
        (3, 2 * half, False),
        (3, 2 * half + 4, True),
    ]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40, 48])
def test_another_stage_continues_anywhere(count: int) -> None:
    splits = 3 * UNIT_ELEMENTS
    stage = stage_of(EVEN, (0, splits))
    before = drained(stage)
    point = stage.resume_point(count)
    rest = stage_of(EVEN, (point.finished_splits, splits))
    rest.begin_at(point.without_finished_splits())
    assert before[:count] + drained(rest) == before


def test_a_stage_that_continued_knows_its_own_resume_points() -> None:
    splits = 3 * UNIT_ELEMENTS
    stage = stage_of(EVEN, (0, splits))
    before = drained(stage)
    point = stage.resume_point(20)
    second = stage_of(EVEN, (point.finished_splits, splits))
    second.begin_at(point.without_finished_splits())
    drained(second)
    again = second.resume_point(13)
    third = stage_of(EVEN, (point.finished_splits + again.finished_splits, splits))
    third.begin_at(again.without_finished_splits())
    assert before[:33] + drained(third) == before


def test_large_batches_are_units_of_their_own() -> None:
    assert splits_per_unit(Dataset.range(1000).batch(100).operation) == 1
    assert splits_per_unit(Dataset.range(1000).batch(8).map(sum).operation) == UNIT_ELEMENTS // 8
    assert splits_per_unit(Dataset.from_generator(lambda: iter(range(3))).operation) == 1


@pytest.mark.parametrize(
    "dataset", [EVEN.prefetch(2), EVEN.flat_map(Dataset.range), Dataset.range(9).batch(2).unbatch()]
)
def test_what_keeps_to_one_split_has_no_obstacle(dataset: Dataset) -> None:
    assert order_obstacle(dataset.operation) == ""
