"""`shuffle`: a permutation within its buffer's reach, the same for a seed, another for each pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import reports
from tests.pipeline.driving import context, failing_at, outcomes, plain, run, values

WANTS = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@given(st.integers(0, 50), st.integers(1, 60), st.integers(-5, 5), WANTS)
def test_it_is_a_permutation_that_does_not_depend_on_the_lengths_of_runs(
    count: int, size: int, seed: int, wants: list[int]
) -> None:
    ds = Dataset.range(count).shuffle(size, seed)
    found = run(ds, wants)
    assert sorted(found) == list(range(count))
    assert found == run(ds, [1])


@given(st.integers(1, 60), st.integers(1, 20))
def test_no_element_comes_earlier_than_the_buffer_allows(count: int, size: int) -> None:
    found = run(Dataset.range(count).shuffle(size, 1))
    assert all(element <= place + size for place, element in enumerate(found))


def test_a_buffer_of_one_keeps_the_order() -> None:
    assert values(Dataset.range(20).shuffle(1)) == list(range(20))


def test_each_place_is_as_likely_for_each_element() -> None:
    places = [[0] * 4 for _ in range(4)]
    ds = Dataset.range(4).shuffle(4, seed=1)
    for number in range(2000):
        for place, element in enumerate(run(ds, iteration_path=(number,))):
            places[element][place] += 1
    # 500 expected each; 100 is over five standard deviations.
    assert all(abs(count - 500) < 100 for row in places for count in row)


def test_a_seed_gives_the_same_orders_in_every_run_and_another_order_in_each_pass() -> None:
    one, other = (Dataset.range(30).shuffle(30, seed=5) for _ in range(2))
    first, second = values(one), values(one)
    assert [first, second] == [values(other), values(other)]
    assert first != second
    repeated = values(Dataset.range(30).shuffle(30, seed=5).repeat(2))
    assert repeated[:30] != repeated[30:]


def test_without_a_seed_every_run_differs() -> None:
    assert values(Dataset.range(30).shuffle(30)) != values(Dataset.range(30).shuffle(30))


def test_without_a_seed_two_shuffles_of_one_run_differ() -> None:
    pairs = values(Dataset.zip(Dataset.range(30).shuffle(30), Dataset.range(30).shuffle(30)))
    assert any(x != y for x, y in pairs)


@pytest.mark.parametrize("seed", [None, 3])
def test_without_reshuffling_all_passes_have_one_order(seed: int | None) -> None:
    ds = Dataset.range(30).shuffle(30, seed, reshuffle_each_iteration=False)
    first = values(ds)
    assert first != list(range(30))
    assert values(ds) == first
    assert values(ds.repeat(2)) == first * 2


def test_errors_do_not_disturb_the_others() -> None:
    found = outcomes(Dataset.range(20).map(failing_at(2, 15)).shuffle(5, seed=1))
    assert sorted(x for x in found if not isinstance(x, Exception)) == [x for x in range(20) if x not in {2, 15}]
    assert sum(isinstance(x, RuntimeError) for x in found) == 2


def test_the_report_shows_the_buffer() -> None:
    stage = Dataset.range(100).shuffle(10).operation.build(context())
    stage.pull(1)
    report = next(reports(stage))
    assert (report.buffered, report.capacity) == (10, 10)


def test_spec_and_length_are_the_input_s() -> None:
    ds = Dataset.range(5).shuffle(2)
    assert ds.cardinality() == 5
    assert plain(ds.element_spec) == Dataset.range(5).element_spec
