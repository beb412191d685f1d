"""`enumerate`: each element with its number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.dataset import Dataset
from tests.pipeline.driving import failing_at, outcomes, plain, run


@given(st.integers(0, 20), st.integers(-5, 5), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_python_s_enumerate(count: int, start: int, wants: list[int]) -> None:
    ds = Dataset.range(count).enumerate(start)
    assert [plain(x) for x in run(ds, wants)] == list(enumerate(range(count), start))
    assert ds.cardinality() == count


def test_numbers_are_int64() -> None:
    assert [type(i) for i, _ in Dataset.range(1).enumerate()] == [np.int64]
    scalar = TensorSpec((), np.int64)
    assert Dataset.range(1).enumerate().element_spec == (scalar, scalar)


def test_an_element_that_failed_keeps_its_number() -> None:
    found = outcomes(Dataset.range(4).map(failing_at(1)).enumerate())
    assert [plain(x) for x in found] == [(0, 0), "RuntimeError", (2, 2), (3, 3)]
