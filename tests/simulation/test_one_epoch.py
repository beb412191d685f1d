"""The protocol between dispatcher, workers and clients, in a simulated world; `world.py` says how it works."""

from __future__ import annotations

import pytest

from tests.simulation.epoch import ELEMENTS, Epoch, Failure

SEEDS = [pytest.param(range(20), id="few"), pytest.param(range(20, 150), id="many", marks=pytest.mark.slow)]


def run(seed: int, failure: Failure) -> Epoch:
    """Run one epoch and check that each element came once; print the trace if something is wrong.

    The only elements that may come twice are those that a client consumed just before it died. If their acknowledgement
    did not arrive, nobody alive knows that they were consumed.
    """
    epoch = Epoch(seed, failure)
    try:
        epoch.run()
        assert epoch.dispatcher.losses == []
        assert sorted(epoch.consumed) == sorted([*range(ELEMENTS), *epoch.unacknowledged])
    except BaseException:
        print(f"seed {seed}:", *epoch.world.trace(), sep="\n")  # noqa: T201
        raise
    return epoch


@pytest.mark.parametrize("seeds", SEEDS)
def test_each_element_comes_once_although_a_connection_breaks(seeds: range) -> None:
    for seed in seeds:
        run(seed, Failure.CONNECTION)


@pytest.mark.parametrize("seeds", SEEDS)
def test_each_element_comes_once_although_a_connection_breaks_at_the_end(seeds: range) -> None:
    for seed in seeds:
        run(seed, Failure.CONNECTION_AT_END)


@pytest.mark.parametrize("seeds", SEEDS)
def test_what_a_dead_client_had_not_consumed_comes_to_another_client(seeds: range) -> None:
    for seed in seeds:
        epoch = run(seed, Failure.CLIENT)
        assert epoch.dead is not None


@pytest.mark.parametrize("failure", Failure)
def test_a_seed_always_gives_the_same_trace(failure: Failure) -> None:
    traces = []
    for _ in range(2):
        epoch = Epoch(7, failure)
        epoch.run()
        traces.append(epoch.world.trace())
    assert traces[0] == traces[1]
