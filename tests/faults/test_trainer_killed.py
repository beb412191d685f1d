"""A trainer of the cross-trainer cache is killed: those who wait for it go on at once, not when its time is over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import dsnb
from tests.faults.chaos import Scene
from tests.support.waiting import wait_for

LONG_S = 60.0
"""The trainer's own time and the dispatcher's for clients, in both of which the others would wait in vain."""


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["grpc", "tcp", "shared_memory"])
def test_a_wait_trainer_that_is_killed_holds_nobody_up(tmp_path: Path, transfer: str) -> None:
    with Scene(tmp_path, workers=0, client_timeout_ms=int(1000 * LONG_S)) as scene:
        scene.add_worker(0, "--cache-bytes", "20KB")
        scene.register(dsnb.Dataset.range(1_000_000_000))
        cache = {"cache": {"on_lag": "wait", "timeout": LONG_S}, "mode": "parallel_epochs", "transfer": transfer}
        # It takes one element: if it went on, the window would move with it, frame by frame, and the fast one too.
        slow = scene.read(trainer="slow", pause_s=LONG_S, **cache)
        scene.wait_for(slow, 1)
        fast = scene.read(trainer="fast", **cache)
        scene.wait_for(fast, 1)
        wait_for(lambda: time.time() - fast.log.stat().st_mtime > 1.0, what="the fast one to be held up", timeout=30)
        held_up_at = len(fast.got)
        slow.kill()
        killed = time.monotonic()
        scene.wait_for(fast, 3 * held_up_at)
        assert time.monotonic() - killed < LONG_S / 2
        got = fast.got
        assert got == list(range(len(got)))
