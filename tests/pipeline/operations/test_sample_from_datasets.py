"""`sample_from_datasets`: each element from a dataset drawn at random, in the order of its dataset."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from tests.pipeline.driving import failing_at, outcomes, run, values

WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def endless(count: int) -> list[Dataset]:
    return [Dataset.from_tensors(place).repeat() for place in range(count)]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=4), st.integers(0, 99), WANTS)
def test_every_element_comes_once_and_in_the_order_of_its_dataset(
    lengths: list[int], seed: int, wants: list[int]
) -> None:
    datasets = [Dataset.range(100 * place, 100 * place + length) for place, length in enumerate(lengths)]
    ds = Dataset.sample_from_datasets(datasets, seed=seed)
    found = run(ds, wants)
    assert ds.cardinality() == len(found) == sum(lengths)
    for place, length in enumerate(lengths):
        assert [x for x in found if x // 100 == place] == list(range(100 * place, 100 * place + length))


@pytest.mark.slow
@given(st.integers(0, 99), WANTS, st.booleans())
def test_the_order_for_a_seed_does_not_depend_on_the_lengths_of_runs(seed: int, wants: list[int], stop: bool) -> None:
    datasets = [Dataset.range(5), Dataset.range(10, 30), Dataset.range(40, 42)]
    ds = Dataset.sample_from_datasets(datasets, [0.2, 0.5, 0.3], seed, stop)
    assert run(ds, wants) == run(ds, [1]) == run(ds, [1024], entropy=99)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, [0.85, 0.05, 0.1], [6, 3, 1], [1, 0, 1]], ids=str)
def test_datasets_are_drawn_as_often_as_their_weights_say(weights: list[float] | None) -> None:
    ds = Dataset.sample_from_datasets(endless(3), weights, seed=11)
    counts = Counter(int(x) for x in islice(ds, 5000))
    shares = weights or [1, 1, 1]
    distance = sum((counts[place] / 5000 - share / sum(shares)) ** 2 for place, share in enumerate(shares))
    assert distance < 1e-3
    assert counts[1] or not shares[1]


def test_where_the_first_end_is_the_end_of_all() -> None:
    datasets = [Dataset.range(2), Dataset.range(10, 1000)]
    ds = Dataset.sample_from_datasets(datasets, seed=3, stop_on_empty_dataset=True)
    found = values(ds)
    assert found[-1] >= 10
    assert [x for x in found if x < 10] == [0, 1]
    assert len(found) < 100
    assert ds.cardinality() == UNKNOWN_CARDINALITY


def test_passes_draw_alike_with_a_seed_unless_they_are_to_draw_anew() -> None:
    def passes(**settings: Any) -> list[list[int]]:
        found = values(Dataset.sample_from_datasets([Dataset.range(20), Dataset.range(20, 40)], **settings).repeat(2))
        return [found[:40], found[40:]]

    one, two = passes(seed=5)
    assert one == two
    one, two = passes(seed=5, rerandomize_each_iteration=True)
    assert one != two
    assert [one, two] == passes(seed=5, rerandomize_each_iteration=True)
    one, two = passes()
    assert one != two


def test_errors_do_not_disturb_the_others() -> None:
    found = outcomes(Dataset.sample_from_datasets([Dataset.range(9).map(failing_at(3)), Dataset.range(10, 15)], seed=1))
    assert sum(isinstance(x, RuntimeError) for x in found) == 1
    assert sorted(x for x in found if not isinstance(x, Exception)) == [0, 1, 2, 4, 5, 6, 7, 8, *range(10, 15)]


def test_lengths() -> None:
    assert Dataset.sample_from_datasets([*endless(1), Dataset.range(3)]).cardinality() == INFINITE_CARDINALITY
    assert Dataset.sample_from_datasets([*endless(1), Dataset.range(3)], [0, 1]).cardinality() == 3
    assert Dataset.sample_from_datasets(endless(2), stop_on_empty_dataset=True).cardinality() == INFINITE_CARDINALITY


@pytest.mark.parametrize(
    "weights", [[1], [1, 1, 1], [0, 0], [-1, 2], [float("nan"), 1], [float("inf"), 1], "ab", 5,
                Dataset.range(2).batch(2)],
    ids=["few", "many", "zeros", "negative", "nan", "inf", "text", "a number", "a dataset"],
)  # fmt: skip
def test_wrong_weights_are_refused_at_the_call(weights: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.sample_from_datasets(endless(2), weights)


def test_no_dataset_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.sample_from_datasets([])
