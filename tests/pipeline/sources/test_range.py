"""`Dataset.range` counts as Python's range does, in int64."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.splits import SplitProvider, split_providers
from tests.pipeline.driving import Feed, context, drain, run, values


@given(
    st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool), st.lists(st.integers(1, 9), min_size=1)
)
def test_it_counts_as_python_does_whatever_the_lengths_of_runs(
    start: int, stop: int, step: int, wants: list[int]
) -> None:
    ds = Dataset.range(start, stop, step)
    assert run(ds, wants) == list(range(start, stop, step))
    assert ds.cardinality() == len(range(start, stop, step))


def test_elements_are_int64_scalars() -> None:
    assert [type(x) for x in Dataset.range(2)] == [np.int64, np.int64]
    assert Dataset.range(2).element_spec == TensorSpec((), np.int64)


def test_a_run_is_a_read_only_array() -> None:
    run = Dataset.range(5).operation.build(context()).pull(3)
    assert isinstance(run, np.ndarray)
    assert not run.flags.writeable


def test_one_number_is_one_split() -> None:
    ds = Dataset.range(0, 10, 3)
    assert split_providers(ds.operation) == (SplitProvider("range(0, 10, 3)", 4, divisible=True),)
    feed = Feed([4], piece=3)
    assert drain(ds.operation.build(context(splits=feed.task())), [2]) == [0, 3, 6, 9]


def test_names_are_as_the_user_wrote_them() -> None:
    assert [Dataset.range(*args).operation.name for args in [(5,), (1, 5), (1, 5, 2)]] == [
        "range(5)",
        "range(1, 5)",
        "range(1, 5, 2)",
    ]


def test_an_empty_range_is_empty() -> None:
    assert values(Dataset.range(0)) == []
