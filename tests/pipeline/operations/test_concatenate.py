"""`concatenate`: one behind the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, context, drain, run


@given(st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_the_sum_of_lists(first: int, second: int, wants: list[int]) -> None:
    ds = Dataset.range(first).concatenate(Dataset.range(second))
    assert run(ds, wants) == [*range(first), *range(second)]
    assert ds.cardinality() == first + second


def test_sizes_that_differ_become_unknown_in_the_spec() -> None:
    first, second = (Dataset.from_tensors(np.zeros((size, 2))) for size in (3, 4))
    assert first.concatenate(second).element_spec == TensorSpec((None, 2), np.float64)
    assert first.concatenate(second.map(lambda x: x)).element_spec is None


def test_specs_that_do_not_go_together_are_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match=r"`dataset` has elements of the spec .*, which cannot follow"):
        Dataset.range(3).concatenate(Dataset.from_tensors("a"))


def test_lengths_add_up_as_far_as_they_are_known() -> None:
    known, unknown = Dataset.range(3), Dataset.range(3).filter(bool)
    assert known.concatenate(unknown).cardinality() == UNKNOWN_CARDINALITY
    assert unknown.concatenate(known.repeat()).cardinality() == INFINITE_CARDINALITY


def test_one_task_reads_all_splits_in_order() -> None:
    ds = Dataset.range(4).concatenate(Dataset.range(4, 9))
    counts = [provider.count for provider in split_providers(ds.operation)]
    assert counts == [4, 5]
    assert drain(ds.operation.build(context(splits=Feed(counts).task()))) == list(range(9))
