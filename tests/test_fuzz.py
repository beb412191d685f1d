"""Nothing that users pass makes dsnb raise a raw error, hang, or accept what cannot work."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsnb.cache.results.remembered_function import close_default_caches
from tests.support import fsspec_loop  # noqa: F401 - for its effect
from tests.support.cluster import Cluster
from tests.support.fuzzing import FuzzEnvironment, calls, command_lines, flaw_of, flaw_of_command

SEED = 15
CALLS = 2900
COMMANDS = 100


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FuzzEnvironment]:
    """A folder that nothing leads out of, and a service whose consumers wait for half a second."""
    folder = tmp_path / "home" / "user"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    with Cluster(workers=1, dispatcher={"consumer_timeout_ms": 500}) as cluster:
        yield FuzzEnvironment(folder, cluster)
    close_default_caches()


def flaws(world: FuzzEnvironment, seed: int, count: int, commands: int) -> list[str]:
    found = [f"{call}: {flaw}" for call in calls(world, seed, count) if (flaw := flaw_of(call, world))]
    lines = command_lines(world, seed, commands)
    found += [f"dsnb {' '.join(words)}: {flaw}" for words in lines if (flaw := flaw_of_command(words))]
    return found


@pytest.mark.slow
def test_3000_calls_are_refused_by_name_or_work(world: FuzzEnvironment) -> None:
    assert flaws(world, SEED, CALLS, COMMANDS) == [], f"seed {SEED}"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_calls_are_refused_by_name_or_work(world: FuzzEnvironment) -> None:
    seed = int(os.environ.get("DSNB_FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))
    assert flaws(world, seed, 60_000, 2_000) == [], f"seed {seed}: DSNB_FUZZ_SEED={seed} runs it again"
