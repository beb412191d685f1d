"""Runs that are killed or stopped at named points of the store: what they leave, and what the next ones find."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.points import ON_REDIS, RECORDING
from tests.support.processes import PythonProcess
from tests.support.redis import RedisServer
from tests.support.requires import require_module

SHORT = (
    "alone points",
    "alone random 0 15",
    "alone asleep 3",
    "crowded passed",
    "crowded points shelf",
    "crowded points remove",
    "splits points",
    "alone full",
    "crowded full shelf",
    "crowded full remove",
)

Found = Callable[[str], dict[str, str]]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[Found]:
    """What the short forms found. They wait for disks and leases, most of the time, and so are begun all at once."""
    with ExitStack() as stack:
        names = [name for name in SHORT if any(name in item.name for item in request.session.items)]
        begun = {name: stack.enter_context(_begun(name)) for name in names}

        def get(name: str) -> dict[str, str]:
            if name not in begun:
                begun[name] = stack.enter_context(_begun(name))
            return _found(begun[name], timeout=380)

        yield get


def _begun(words: str) -> PythonProcess:
    return PythonProcess(["-m", "tests.cache.crashing", *words.split()])


def _found(process: PythonProcess, timeout: float) -> dict[str, str]:
    result: dict[str, str] = json.loads(process.wait_for_line("FOUND", timeout=timeout).removeprefix("FOUND"))
    assert process.wait_for_exit() == 0
    return result


def problems(words: str, timeout: float, runs: int) -> dict[str, str]:
    with _begun(words) as process:
        result = _found(process, timeout)
    assert len(result) >= runs
    return {run: problem for run, problem in result.items() if problem}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", [form for form in SHORT if "passed" not in form])
def test_a_death_or_a_sleep_at_any_point_loses_no_more_than_a_chunk_and_leaves_nothing_behind(
    found: Found, form: str
) -> None:
    runs = found(form)
    assert len(runs) >= 3
    assert {run: problem for run, problem in runs.items() if problem} == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["crowded passed"])
def test_each_point_of_the_store_has_a_test_that_kills_there(found: Found, form: str) -> None:
    killed = {run.partition(",")[0] for run in (*found("alone points"), *found("crowded points shelf"))}
    killed |= {run.partition(",")[0] for run in found("crowded points remove")}
    assert set(found(form)) <= killed == set(RECORDING.names)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_disk_was_full_at_each_point_of_the_store(found: Found) -> None:
    full = [name for form in SHORT if " full" in form for name in found(form)]
    assert {name.partition(",")[0] for name in full} == set(RECORDING.fails)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    require_module("redis")
    with RedisServer(tmp_path) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_death_at_any_command_to_redis_loses_no_more_than_a_chunk_and_leaves_nothing_behind(
    server: RedisServer,
) -> None:
    with _begun(f"{server.url} points redis") as process:
        runs = _found(process, timeout=380)
    assert {run: problem for run, problem in runs.items() if problem} == {}
    assert {run.partition(",")[0] for run in runs} == set(ON_REDIS.names)


# ---------------------------------------------------------------------------------------------------------- at length


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scene", ["alone", "crowded", "splits"])
def test_a_writer_that_is_stopped_at_each_point_wakes_up_as_a_follower(scene: str) -> None:
    assert problems(f"{scene} asleep 1", timeout=3500, runs=40) == {}


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("scene,runs", [("alone", 1000), ("crowded", 300), ("splits", 500)])
def test_a_thousand_deaths(scene: str, runs: int) -> None:
    assert problems(f"{scene} random 0 {runs}", timeout=7000, runs=runs) == {}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_deaths_and_a_sleep_at_each_command_on_redis(server: RedisServer) -> None:
    assert problems(f"{server.url} random 0 300", timeout=3500, runs=300) == {}
    assert problems(f"{server.url} asleep 1", timeout=3500, runs=10) == {}
