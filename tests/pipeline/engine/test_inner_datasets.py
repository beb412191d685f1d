"""Datasets that a function makes: built one by one, read whole, each a pass of its own."""

from __future__ import annotations

from typing import Any

import pytest

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.inner_datasets import InnerDatasets
from tests.pipeline.driving import Feed, context, drain, failing_at, plain


def inner(function: Any, count: int = 3, **settings: Any) -> InnerDatasets:
    return InnerDatasets("flat_map(f)", function, Dataset.range(count).operation.build(context()), context(**settings))


def test_each_element_s_dataset_is_built_in_turn() -> None:
    datasets = inner(Dataset.range)
    found = []
    while (stage := datasets.next()) is not None:
        found.append([plain(x) for x in drain(stage)])
    assert found == [[], [0], [0, 1]]


def test_the_function_s_error_takes_its_element_s_place() -> None:
    datasets = inner(lambda x: Dataset.range(failing_at(0)(x)))
    with pytest.raises(RuntimeError, match="0 is bad"):
        datasets.next()
    assert datasets.next() is not None


def test_something_else_than_a_dataset_is_refused_with_advice() -> None:
    with pytest.raises(InvalidArgumentError, match="returned list, not a Dataset") as caught:
        inner(lambda x: [x]).next()
    assert caught.value.hint


def test_inner_sources_ask_for_no_splits() -> None:
    feed = Feed([0])
    stage = inner(lambda _: Dataset.range(4), splits=feed.task()).next()
    assert stage is not None
    assert len(drain(stage)) == 4
    assert feed.opened == []


def test_inner_shuffles_differ_from_one_another() -> None:
    datasets = inner(lambda _: Dataset.range(20).shuffle(20, seed=1), 2)
    first, second = datasets.next(), datasets.next()
    assert first is not None
    assert second is not None
    assert drain(first) != drain(second)
