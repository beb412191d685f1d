"""Seeded draws repeat in the same pass of any run; unseeded ones differ in every way."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.engine.randomness import fixed_generator, generator
from tests.pipeline.driving import context


def drawn(random: np.random.Generator) -> list[int]:
    return random.integers(0, 10**9, 5).tolist()  # type: ignore[no-any-return]


def test_a_seed_draws_the_same_in_the_same_pass_of_any_run() -> None:
    assert drawn(generator(context(entropy=1), 5)) == drawn(generator(context(entropy=2), 5, 9))


def test_a_seed_draws_anew_in_another_pass() -> None:
    assert drawn(generator(context(iteration_path=(0,)), 5)) != drawn(generator(context(iteration_path=(1,)), 5))


def test_without_a_seed_runs_places_and_providers_differ() -> None:
    every: list[Any] = [
        drawn(generator(context(entropy=1), None, 0)),
        drawn(generator(context(entropy=2), None, 0)),
        drawn(generator(context(entropy=1), None, 1)),
        drawn(generator(context(entropy=1, iteration_path=(1,)), None, 0)),
    ]
    assert len({tuple(each) for each in every}) == len(every)


def test_a_negative_seed_is_as_good_as_any() -> None:
    assert drawn(generator(context(), -1)) != drawn(generator(context(), 1))


def test_a_fixed_generator_never_changes() -> None:
    assert drawn(fixed_generator(None)) == drawn(fixed_generator(None))
    assert drawn(fixed_generator(1)) != drawn(fixed_generator(None))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(2, 5000))
def test_draws_do_not_depend_on_how_they_are_cut(lengths: list[int], size: int) -> None:
    """What a shuffle's independence of run lengths rests on."""
    cut, whole = generator(context(), 1), generator(context(), 1)
    pieces = [number for length in lengths for number in cut.integers(0, size, length).tolist()]
    assert pieces == whole.integers(0, size, sum(lengths)).tolist()
