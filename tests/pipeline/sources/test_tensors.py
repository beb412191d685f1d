"""`from_tensors`: the value is the one element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsnb.elements.spec import STR, TensorSpec
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, context, drain, plain, values


@pytest.mark.parametrize(
    "value, expected",
    [
        (1, 1),
        ([1, 2], [1, 2]),
        ((1, [2.5]), (1, [2.5])),
        ({"a": "text"}, {"a": "text"}),
        (np.zeros((2, 2)), [[0, 0]] * 2),
    ],
    ids=["scalar", "list", "tuple", "dict", "array"],
)
def test_the_value_comes_once(value: Any, expected: Any) -> None:
    ds = Dataset.from_tensors(value)
    assert values(ds) == [expected]
    assert len(ds) == 1


def test_the_spec_is_known() -> None:
    spec = Dataset.from_tensors((np.zeros(3, "f4"), "a")).element_spec
    assert spec == (TensorSpec((3,), "f4"), TensorSpec((), STR))


def test_later_changes_of_the_user_s_do_not_show() -> None:
    array = np.zeros(2)
    ds = Dataset.from_tensors({"x": array})
    array[:] = 1
    assert values(ds) == [{"x": [0, 0]}]


def test_of_several_tasks_one_gets_it() -> None:
    ds = Dataset.from_tensors(5)
    (provider,) = split_providers(ds.operation)
    assert provider.count == 1
    feed = Feed([1])
    stages = [ds.operation.build(context(splits=feed.task())) for _ in range(2)]
    assert [plain(drain(stage)) for stage in stages] == [[5], []]
