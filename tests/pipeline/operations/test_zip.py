"""`zip`: side by side, aligned even behind errors, as long as the shortest."""

from __future__ import annotations

from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, context, drain, failing_at, outcomes, plain, run, values

Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024 - the test needs an untyped one


@given(st.lists(st.integers(0, 20), min_size=2, max_size=3), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_it_is_python_s_zip(counts: list[int], wants: list[int]) -> None:
    ds = Dataset.zip(*map(Dataset.range, counts))
    assert [plain(x) for x in run(ds, wants)] == list(zip(*map(range, counts), strict=False))
    assert ds.cardinality() == min(counts)


def test_datasets_may_be_nested() -> None:
    a, b = Dataset.range(2), Dataset.range(5, 9)
    assert values(Dataset.zip({"x": a, "y": (b, a)})) == [{"x": 0, "y": (5, 0)}, {"x": 1, "y": (6, 1)}]
    assert values(Dataset.zip((a, b))) == values(Dataset.zip(datasets=(a, b))) == [(0, 5), (1, 6)]
    assert values(Dataset.zip(Pair(a, b))) == [Pair(0, 5), Pair(1, 6)]
    assert values(Dataset.zip(a)) == [0, 1]


@given(st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_pairs_stay_aligned_behind_errors(left: set[int], right: set[int], wants: list[int]) -> None:
    ds = Dataset.zip(Dataset.range(20).map(failing_at(*left)), Dataset.range(20).map(failing_at(*right)))
    found = [plain(x) for x in run(ds, wants)]
    assert [x for x in found if x != "RuntimeError"] == [(x, x) for x in range(20) if x not in left | right]
    assert found.count("RuntimeError") <= len(left) + len(right)
    assert found.count("RuntimeError") >= len(left | right)


def test_an_error_stands_where_its_pair_would() -> None:
    found = outcomes(Dataset.zip(Dataset.range(4), Dataset.range(4).map(failing_at(2))))
    assert [plain(x) for x in found] == [(0, 0), (1, 1), "RuntimeError", (3, 3)]


def test_specs_are_nested_alike_and_unknown_if_one_is() -> None:
    a = Dataset.range(3)
    assert Dataset.zip({"x": a, "y": a}).element_spec == {"x": a.element_spec, "y": a.element_spec}
    assert Dataset.zip(a, a.map(lambda x: x)).element_spec is None


def test_lengths_follow_the_shortest_that_is_known() -> None:
    a = Dataset.range(3)
    assert Dataset.zip(a, a.repeat()).cardinality() == 3
    assert Dataset.zip(a.repeat(), a.repeat()).cardinality() == INFINITE_CARDINALITY
    assert Dataset.zip(a, a.filter(bool)).cardinality() == UNKNOWN_CARDINALITY


@pytest.mark.parametrize("wrong", [(), (5,), (Dataset.range(1), [1])], ids=["nothing", "int", "list"])
def test_anything_else_is_refused(wrong: tuple[object, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.zip(*wrong)


def test_each_source_has_splits_of_its_own() -> None:
    ds = Dataset.zip(Dataset.range(10), Dataset.zip(Dataset.range(10, 20), Dataset.range(5)))
    counts = [provider.count for provider in split_providers(ds.operation)]
    assert counts == [10, 10, 5]
    feed = Feed(counts, piece=3)
    assert [plain(x) for x in drain(ds.operation.build(context(splits=feed.task())), [2])] == [
        (x, (x + 10, x)) for x in range(5)
    ]
    assert feed.opened == [0, 1, 2]
