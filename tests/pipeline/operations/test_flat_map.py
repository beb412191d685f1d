"""`flat_map`: datasets one behind the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, by_turns, context, failing_at, outcomes, plain, run


@given(st.lists(st.integers(0, 7), max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_it_is_a_nested_loop(lengths: list[int], wants: list[int]) -> None:
    ds = Dataset.range(len(lengths)).flat_map(lambda n: Dataset.range(lengths[n]))
    assert run(ds, wants) == [x for length in lengths for x in range(length)]


def test_errors_of_function_and_datasets_stand_in_their_places() -> None:
    picky = failing_at(1)
    found = outcomes(Dataset.range(3).flat_map(lambda n: Dataset.range(picky(n) + 1).map(failing_at(2))))
    assert [plain(x) for x in found] == [0, "RuntimeError", 0, 1, "RuntimeError"]


def test_something_else_than_a_dataset_is_an_error_in_its_place() -> None:
    def sometimes(n: int) -> Any:
        return [1] if n == 0 else Dataset.range(1)

    found = outcomes(Dataset.range(2).flat_map(sometimes))
    assert [plain(x) for x in found] == ["InvalidArgumentError", 0]


def test_closing_closes_the_dataset_at_hand() -> None:
    closed: list[int] = []

    def careful() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(1)

    elements = iter(Dataset.range(5).flat_map(lambda _: Dataset.from_generator(careful)))
    next(elements)
    elements.close()
    assert closed == [1]


@pytest.mark.parametrize("repeats", [1, 2])
def test_several_tasks_share_the_outer_elements_and_read_the_inner_ones_whole(repeats: int) -> None:
    ds = Dataset.range(6).flat_map(lambda n: Dataset.range(n).repeat(repeats))
    feed = Feed([provider.count for provider in split_providers(ds.operation)], piece=1)
    shares = by_turns([ds.operation.build(context(splits=feed.task())) for _ in range(2)])
    assert sorted(shares[0] + shares[1]) == sorted(x for n in range(6) for x in list(range(n)) * repeats)


def test_the_length_is_unknown() -> None:
    assert Dataset.range(3).flat_map(Dataset.range).cardinality() == UNKNOWN_CARDINALITY
