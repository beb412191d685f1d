"""`unique`: the first of equal elements, of every kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY
from tests.pipeline.driving import outcomes, plain, run, values


@dataclass(frozen=True)
class Sample:
    """In an element."""

    label: int
    image: Any


MAKERS: dict[str, Any] = {
    "int": lambda x: x,
    "python int": int,
    "float": lambda x: x / 2,
    "str": str,
    "bytes": lambda x: b"%d" % x,
    "array": lambda x: np.full((2, 2), x),
    "long array": lambda x: np.full(100, x),
    "tuple": lambda x: (x % 2, np.full(3, x)),
    "dict": lambda x: {"a": x, "b": "t"} if x % 2 else {"b": "t", "a": x},
    "dataclass": lambda x: Sample(int(x), np.full(2, x)),
    "none part": lambda x: (None, {"a": x, "b": None}),
    "date": lambda x: np.datetime64(int(x), "D"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_keeps_the_first_of_each(kind: str, numbers: list[int], wants: list[int]) -> None:
    make = MAKERS[kind]
    ds = Dataset.range(len(numbers)).map(lambda i: make(np.int64(numbers[i]))).unique()
    assert [repr(x) for x in run(ds, wants)] == [repr(make(np.int64(x))) for x in dict.fromkeys(numbers)]


def test_the_example_of_the_original() -> None:
    assert values(Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique()) == [1, 37, 2]
    assert values(Dataset.from_tensor_slices([b"bb", b"aa", b"bb"]).unique()) == [b"bb", b"aa"]


def test_there_is_one_zero_and_one_not_a_number() -> None:
    found = values(Dataset.from_tensor_slices([0.0, -0.0, float("nan"), -float("nan"), 1.0]).unique())
    assert [str(x) for x in found] == ["0.0", "nan", "1.0"]


def test_shapes_count() -> None:
    ds = Dataset.range(4).map(lambda x: np.zeros((2, 3) if x % 2 else (3, 2))).unique()
    assert [x.shape for x in ds] == [(3, 2), (2, 3)]


def test_errors_stand_in_their_places() -> None:
    ds = Dataset.range(5).map(lambda x: object() if x == 1 else x // 2).unique()
    assert [plain(x) for x in outcomes(ds)] == [0, "InvalidArgumentError", 1, 2]


def test_each_pass_begins_anew_and_the_length_is_not_known() -> None:
    ds = Dataset.range(4).map(lambda x: x % 2).unique()
    assert values(ds.repeat(2)) == [0, 1, 0, 1]
    assert ds.cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.range(3).unique().element_spec == Dataset.range(3).element_spec
