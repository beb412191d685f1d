"""Random faults of readers and of every backend: no element is wrong, missing or twice, and repeats are bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cache.chaos import Faults, on_files, on_redis, on_s3, torment
from tests.cache.company import Runs
from tests.support.redis import RedisServer
from tests.support.requires import require_module
from tests.support.s3 import S3Server

PLACES = ["directory", "redis", "redis with persistence", "fsspec files", "s3"]
LENGTH = 150
PAUSE_S = 0.005

Chaos = Callable[[int, float], None]


def _place(kind: str, tmp_path: Path, stack: ExitStack) -> tuple[str, Faults, dict[str, str]]:
    """Where to record, what may happen there, and what processes need to find it."""
    if kind == "directory":
        return str(tmp_path / "cache"), on_files(tmp_path / "cache"), {}
    if kind == "fsspec files":
        require_module("fsspec")
        return f"file://{tmp_path}/remote", on_files(tmp_path / "remote"), {}
    if kind == "s3":
        s3 = stack.enter_context(S3Server())
        return s3.url, on_s3(s3), s3.env
    require_module("redis")
    persistence = ("--appendonly", "yes") if "persistence" in kind else ()
    server = stack.enter_context(RedisServer(tmp_path, *persistence))
    return server.url, on_redis(server), {}


@pytest.fixture
def chaos(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Chaos]:
    with ExitStack() as stack:
        where, faults, env = _place(request.param, tmp_path, stack)
        runs = Runs(tmp_path, LENGTH, PAUSE_S, stack, where, env=env)
        yield lambda seed, seconds: torment(runs, faults, seed, seconds)


@pytest.mark.slow
def test_a_store_of_objects_keeps_recordings_and_may_be_gone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(S3Server())
        runs = Runs(tmp_path, LENGTH, 0.0, stack, server.url, env=server.env)
        for _ in range(2):
            runs.finished(runs.start())
        assert runs.calls() == LENGTH
        server.kill()
        runs.finished(runs.start())
        assert runs.calls() == 2 * LENGTH
        assert "the pass continues without the cache" in runs.told


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("chaos", PLACES, indirect=True)
def test_random_faults_cost_no_element_and_bounded_work(chaos: Chaos, seed: int) -> None:
    chaos(seed, 8.0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 112))
@pytest.mark.parametrize("chaos", PLACES, indirect=True)
def test_random_faults_for_long(chaos: Chaos, seed: int) -> None:
    chaos(seed, 60.0)
