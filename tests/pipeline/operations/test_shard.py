"""`shard` keeps every n-th element, and an element that failed is the business of the shard that has its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from tests.pipeline.driving import failing_at, outcomes, plain, run, values

HINT = dsnb.SHARD_HINT


@given(st.integers(0, 40), st.integers(1, 9), st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_a_slice_with_a_step(length: int, count: int, data: st.DataObject, wants: list[int]) -> None:
    index = data.draw(st.integers(0, count - 1))
    for numbers in (Dataset.range(length), Dataset.range(length).map(lambda x: x)):
        ds = numbers.shard(count, index)
        assert run(ds, wants) == list(range(length))[index::count]
    assert Dataset.range(length).shard(count, index).cardinality() == len(range(length)[index::count])


def test_no_element_is_computed_behind_the_last_that_is_wanted() -> None:
    seen: list[int] = []
    ds = Dataset.range(100).map(lambda x: seen.append(int(x)) or x).shard(4, 2).take(3)
    assert values(ds) == [2, 6, 10]
    assert seen == list(range(11))


def test_shards_of_shards_are_shards() -> None:
    assert values(Dataset.range(24).shard(2, 1).shard(3, 2)) == list(range(24))[1::2][2::3]


@pytest.mark.parametrize("index", range(3))
def test_an_error_comes_in_the_shard_that_has_its_place_and_in_no_other(index: int) -> None:
    ds = Dataset.range(12).map(failing_at(1, 4, 6)).shard(3, index)
    expected = ["RuntimeError" if x in (1, 4, 6) else x for x in range(index, 12, 3)]
    assert [plain(x) for x in outcomes(ds)] == expected


def test_endless_data_stay_endless_and_an_unknown_length_unknown() -> None:
    assert Dataset.range(3).repeat().shard(2, 1).cardinality() == INFINITE_CARDINALITY
    assert Dataset.range(3).filter(bool).shard(2, 1).cardinality() == UNKNOWN_CARDINALITY


@pytest.mark.parametrize("count,index,told", [
    pytest.param(0, 0, "greater than zero", id="no shard"),
    pytest.param(-2, 0, "greater than zero", id="less than none"),
    pytest.param(5, 5, "between 0 and 4 (currently index = 5)", id="one too far"),
    pytest.param(5, HINT, "between 0 and 4 (currently index = -1)", id="hint as an index"),
    pytest.param(2.0, 0, "`num_shards` is 2.0", id="no whole number"),
])  # fmt: skip
def test_wrong_numbers_are_refused_where_they_are_given(count: int, index: int, told: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        Dataset.range(9).shard(count, index)
    assert told in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize("index", [HINT, 0, 5])
def test_a_hint_that_nobody_filled_in_is_refused_when_it_is_read(index: int) -> None:
    ds = Dataset.range(9).shard(HINT, index)
    assert ds.cardinality() == UNKNOWN_CARDINALITY
    assert "shard(SHARD_HINT, SHARD_HINT)" in repr(ds)
    with pytest.raises(FailedPreconditionError, match=r"ShardingPolicy\.HINT"):
        iter(ds).start()
