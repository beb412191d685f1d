from __future__ import annotations

import json

import pytest

from tests.support.processes import PythonProcess


def problems(*arguments: str, timeout: float) -> dict[str, str]:
    with PythonProcess(["-m", "tests.cache.crashing", *arguments]) as process:
        found: dict[str, str] = json.loads(process.line("PROBLEMS", timeout=timeout).removeprefix("PROBLEMS"))
        assert process.ended() == 0
    return found


@pytest.mark.timeout(400)
def test_a_death_at_any_point_loses_no_more_than_a_chunk_and_leaves_nothing_behind() -> None:
    assert problems("points", timeout=380) == {}


def test_deaths_of_several_runs_lose_no_more_than_a_chunk_each() -> None:
    assert problems("random", "0", "15", timeout=110) == {}


def test_a_writer_that_is_stopped_anywhere_wakes_up_as_a_follower() -> None:
    assert problems("asleep", "3", timeout=110) == {}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_writer_that_is_stopped_at_each_point_wakes_up_as_a_follower() -> None:
    assert problems("asleep", "1", timeout=580) == {}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_deaths() -> None:
    assert problems("random", "0", "1000", timeout=3500) == {}
