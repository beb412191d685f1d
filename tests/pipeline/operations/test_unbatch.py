"""`unbatch`: rows as elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsnb.elements.spec import TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from tests.pipeline.driving import outcomes, plain, run, values


def of(*elements: Any) -> Dataset:
    return Dataset.from_generator(lambda: elements)


@pytest.mark.parametrize("wants", [[1], [2], [1024]], ids=str)
def test_rows_of_all_leaves_go_together(wants: list[int]) -> None:
    ds = of({"x": np.arange(3), "y": np.array(["a", "b", "c"])}, {"x": np.arange(2), "y": np.array(["d", "e"])})
    found = [plain(x) for x in run(ds.unbatch(), wants)]
    assert found == [{"x": i, "y": y} for i, y in zip([0, 1, 2, 0, 1], "abcde", strict=True)]


def test_text_comes_out_as_text() -> None:
    assert [type(x) for x in of(np.array(["a"]), np.array(["b"])).unbatch()] == [str, str]


def test_empty_batches_give_nothing() -> None:
    assert values(of(np.zeros(0), np.ones(1), np.zeros(0)).unbatch()) == [1.0]


@pytest.mark.parametrize(
    "bad, said",
    [(5, "without dimensions"), ((np.zeros(2), np.zeros(3)), "leaves of [2, 3] rows"), ([1, 2], "without dimensions")],
    ids=["scalar", "lengths", "list"],
)
def test_what_cannot_be_cut_is_an_error_in_its_place(bad: Any, said: str) -> None:
    good = np.arange(2)
    found = outcomes(of(good, bad, good).unbatch())
    assert [plain(x) for x in found] == [0, 1, "InvalidArgumentError", 0, 1]
    assert said in found[2].what


def test_a_dataset_known_to_have_no_rows_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match="no rows to cut"):
        Dataset.range(3).unbatch()


def test_spec_and_length_are_known_where_all_batches_are_full() -> None:
    full = Dataset.range(10).batch(3, drop_remainder=True)
    assert full.unbatch().cardinality() == 9
    assert full.unbatch().element_spec == TensorSpec((), np.int64)
    assert Dataset.range(10).batch(3).unbatch().cardinality() == UNKNOWN_CARDINALITY
    assert full.repeat().unbatch().cardinality() == INFINITE_CARDINALITY
    assert full.map(lambda x: x).unbatch().cardinality() == UNKNOWN_CARDINALITY
