"""`bucket_by_sequence_length`: batches of elements of similar length."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.graph import restore, serialise
from tests.pipeline.driving import outcomes, plain, run, values

ELEMENTS = [[0], [1, 2, 3, 4], [5, 6, 7], [7, 8, 9, 10, 11], [13, 14, 15, 16, 19, 20], [21, 22]]
WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def rows(lengths: Any) -> Dataset:
    return Dataset.range(len(lengths)).map(lambda i: np.array(lengths[i]))


def test_the_examples_of_the_original() -> None:
    ds = rows(ELEMENTS)
    assert values(ds.bucket_by_sequence_length(len, [3, 5], [2, 2, 2])) == [
        [[1, 2, 3, 4], [5, 6, 7, 0]],
        [[7, 8, 9, 10, 11, 0], [13, 14, 15, 16, 19, 20]],
        [[0, 0], [21, 22]],
    ]
    short = rows([[0], [1, 2, 3, 4], [5, 6, 7], [7, 8, 9, 10, 11], [21, 22]])
    ds = short.bucket_by_sequence_length(len, [4, 7], [2, 5, 5], pad_to_bucket_boundary=True, padding_values=-1)
    assert values(ds) == [
        [[0, -1, -1], [5, 6, 7]],
        [[21, 22, -1]],
        [[1, 2, 3, 4, -1, -1], [7, 8, 9, 10, 11, -1]],
    ]


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 12), max_size=30),
    st.lists(st.integers(1, 12), max_size=3, unique=True).map(sorted),
    st.data(),
    st.booleans(),
    WANTS,
)
def test_each_batch_is_of_one_bucket_and_of_its_size(
    lengths: list[int], boundaries: list[int], data: st.DataObject, drop: bool, wants: list[int]
) -> None:
    buckets = len(boundaries) + 1
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=buckets, max_size=buckets))
    ds = Dataset.range(len(lengths)).map(lambda i: (np.full(lengths[i], i), i, lengths[i]))
    ds = ds.bucket_by_sequence_length(lambda row, _, length: length, boundaries, sizes, drop_remainder=drop)
    waiting: list[list[int]] = [[] for _ in range(buckets)]
    expected = []
    for number, length in enumerate(lengths):
        bucket = bisect_right(boundaries, length)
        waiting[bucket].append(number)
        if len(waiting[bucket]) == sizes[bucket]:
            expected.append(waiting[bucket])
            waiting[bucket] = []
    expected += [rest for rest in waiting if rest and not drop]
    found = run(ds, wants)
    assert [plain(numbers) for _, numbers, _ in found] == expected
    for row, _, its in found:
        assert row.shape == (len(its), max(its))


def test_it_batches_without_padding_where_that_is_wanted() -> None:
    ds = rows([[1, 1], [2, 2], [3]]).bucket_by_sequence_length(len, [2], [2, 2], no_padding=True)
    assert values(ds) == [[[1, 1], [2, 2]], [[3]]]


def test_shapes_and_values_are_those_of_padded_batch() -> None:
    ds = rows([[1], [2, 2]]).map(lambda row: (row, row[0]))
    ds = ds.bucket_by_sequence_length(lambda row, _: len(row), [9], [2, 2], ([4], []), (7, None))
    assert values(ds) == [([[1, 7, 7, 7], [2, 2, 7, 7]], [1, 2])]


def test_an_element_beyond_the_last_boundary_is_refused_where_that_is_the_size() -> None:
    ds = rows([[1], [1, 2, 3], [2]]).bucket_by_sequence_length(len, [3], [2, 2], pad_to_bucket_boundary=True)
    found = outcomes(ds)
    assert [plain(x) for x in found] == ["InvalidArgumentError", [[1, 0], [2, 0]]]
    assert "elements must have length < max(bucket_boundaries)" in str(found[0])


@pytest.mark.parametrize(
    "boundaries, sizes",
    [([3], [2]), ([3], [2, 2, 2]), ([3, 3], [1, 1, 1]), ([5, 3], [1, 1, 1]), ([3], [2, 0])],
    ids=str,
)
def test_buckets_that_cannot_be_are_refused_at_the_call(boundaries: list[int], sizes: list[int]) -> None:
    with pytest.raises(InvalidArgumentError):
        rows(ELEMENTS).bucket_by_sequence_length(len, boundaries, sizes)


def test_it_travels_and_is_recognised() -> None:
    def make() -> Dataset:
        return Dataset.range(1, 5).map(lambda n: np.full(n, n)).bucket_by_sequence_length(len, [3], [2, 2])

    graph = serialise(make().operation)
    assert values(Dataset(restore(graph.definition, lambda _: b""))) == values(make())
    assert fingerprint(make().operation).digest == graph.fingerprint.digest
    assert not graph.fingerprint.unhashable
    assert "bucket_by_sequence_length(len)" in repr(make())
