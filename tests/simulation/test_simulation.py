"""Whole services in a simulated world, which `world.py` describes. `python -m tests.simulation` runs more of them."""

from __future__ import annotations

import pytest

from tests.simulation.checker import check
from tests.simulation.found import FOUND, Found
from tests.simulation.plan import Fault, Plan, draw, draw_long, draw_stalled
from tests.simulation.receipts import check_receipt
from tests.simulation.service import Service

SEEDS = range(40)
"""More of them are a step of CI, `python -m tests.simulation`."""
ALONE = [pytest.param(range(3), id="few"), pytest.param(range(3, 30), id="many", marks=pytest.mark.slow)]
LONG = [pytest.param(range(10), id="few"), pytest.param(range(10, 100), id="many", marks=pytest.mark.slow)]


def run(plan: Plan) -> Service:
    """Run a plan and check it; print what happened if something is wrong."""
    service = Service(plan)
    try:
        service.run()
        check(service)
        check_receipt(service)
    except BaseException:
        print(plan, *service.world.trace(), sep="\n")  # noqa: T201
        raise
    return service


def test_what_came_and_what_was_reported_agree_whatever_goes_wrong() -> None:
    for seed in SEEDS:
        run(draw(seed))


@pytest.mark.parametrize("seeds", ALONE)
@pytest.mark.parametrize("fault", Fault)
def test_they_agree_if_one_thing_goes_wrong_again_and_again(fault: Fault, seeds: range) -> None:
    for seed in seeds:
        run(draw(seed, (fault,)))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LONG)
def test_they_agree_if_passes_outlast_the_leases(seeds: range) -> None:
    for seed in seeds:
        run(draw_long(seed))


@pytest.mark.parametrize("seeds", LONG)
def test_they_agree_if_a_worker_dies_while_the_dispatcher_is_suspended_for_long(seeds: range) -> None:
    for seed in seeds:
        run(draw_stalled(seed))


@pytest.mark.slow
@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.call)
def test_what_the_simulator_found_stays_mended(found: Found) -> None:
    run(found.plan)


@pytest.mark.parametrize("seed", [7, 11, 32])
def test_a_seed_always_gives_the_same_trace(seed: int) -> None:
    traces = []
    for _ in range(2):
        service = Service(draw(seed))
        service.run()
        traces.append(service.world.trace())
    assert traces[0] == traces[1]
