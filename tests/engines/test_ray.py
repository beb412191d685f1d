"""Workers as actors of a real Ray: placed, counted, killed, scaled and stopped, with nothing left over."""

from __future__ import annotations

import pytest

from tests.engines import ray_scenarios, scenarios
from tests.support.requires import require_peer

require_peer("ray")

SOAK_S = 3_600.0


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    return scenarios.run_all(ray_scenarios.__name__, timeout=600.0)


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("scenario", scenarios.names(ray_scenarios))
def test_ray(results: dict[str, str], scenario: str) -> None:
    assert results[scenario] == ""


@pytest.fixture(scope="module")
def soak_results() -> dict[str, str]:
    return scenarios.run_all(ray_scenarios.__name__, timeout=SOAK_S, prefix=scenarios.SOAK)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 100)
@pytest.mark.parametrize("scenario", scenarios.names(ray_scenarios, scenarios.SOAK))
def test_ray_for_long(soak_results: dict[str, str], scenario: str) -> None:
    assert soak_results[scenario] == ""
