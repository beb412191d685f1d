"""Each element of a finite DYNAMIC pass reaches its readers once, whoever dies, leaves or is suspended."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from tests.faults.attack import TOLD_WITHIN_S
from tests.faults.chaos import Scene, paced
from tests.support.waiting import wait_for

TRANSFERS = ["grpc", "tcp", "shared_memory"]
UNTOLD_S = {"grpc": TOLD_WITHIN_S, "tcp": TOLD_WITHIN_S, "shared_memory": 0.0}
"""For how long before a reader is killed nobody may know what it consumed."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as scene:
        yield scene


@pytest.mark.slow
@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("readers", [1, 2])
def test_a_killed_workers_part_is_made_again_and_comes_once(scene: Scene, transfer: str, readers: int) -> None:
    scene.register(dsnb.Dataset.range(3_000).map(paced(0.0005)))
    reading = [scene.read(transfer=transfer) for _ in range(readers)]
    scene.wait_for(reading[0], 300)
    scene.workers[0].kill()
    scene.ended()
    scene.check_each_once(3_000)
    assert scene.cluster.job("train").lost_splits == 0


@pytest.mark.slow
def test_a_worker_that_is_stopped_loses_nothing(scene: Scene) -> None:
    scene.register(dsnb.Dataset.range(3_000).map(paced(0.0005)))
    reader = scene.read()
    scene.wait_for(reader, 300)
    scene.workers[0].terminate()
    scene.wait_for(reader, 900)
    scene.add_worker()
    scene.workers[1].terminate()
    assert all(not end["warnings"] for end in scene.ended())
    scene.check_each_once(3_000)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["shared_memory", "tcp", "grpc"])
def test_what_a_killed_reader_had_not_consumed_comes_to_the_other(scene: Scene, transfer: str) -> None:
    scene.register(dsnb.Dataset.range(1_500))
    victim = scene.read(transfer=transfer, pause_s=0.004, gate=scene.gate)
    other = scene.read(transfer=transfer, pause_s=0.002, gate=scene.gate)
    scene.open_gate()
    scene.wait_for(victim, 1)
    scene.wait_for(other, 1)
    wait_for(lambda: len(victim.got) + len(other.got) >= 1_000, what="the end to be near")
    victim.kill()
    scene.ended()
    since = victim.killed - UNTOLD_S[transfer]
    untold = {number for number, at in victim.logged if UNTOLD_S[transfer] and at >= since}
    twice = {number for number, times in scene.counts().items() if times > 1}
    assert twice <= untold, scene.events
    scene.check_each_once(1_500, in_hand=1, again=len(twice))


@pytest.mark.slow
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_reader_that_sleeps_and_is_killed_causes_no_duplicate(scene: Scene, transfer: str) -> None:
    scene.register(dsnb.Dataset.range(300))
    victim = scene.read(transfer=transfer, pause_s=1.0)
    scene.wait_for(victim, 3)
    # It begins when the other is killed: later it might have ended, as no reader waits for what another has in hand.
    other = scene.read(transfer=transfer, gate=scene.gate)
    wait_for(lambda: 0.25 < time.time() - victim.log.stat().st_mtime < 0.75, what="the reader to be asleep")
    victim.kill()
    scene.open_gate()
    scene.ended()
    scene.check_each_once(300)
    assert len(other.got) == 300 - len(victim.got)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_suspended_reader_comes_back_and_nothing_is_lost_or_doubled(scene: Scene, transfer: str) -> None:
    scene.register(dsnb.Dataset.range(4_000))
    other = scene.read(transfer=transfer, pause_s=0.002, gate=scene.gate)
    victim = scene.read(transfer=transfer, pause_s=0.002, gate=scene.gate)
    scene.open_gate()
    scene.wait_for(victim, 100)
    scene.wait_for(other, 1)
    victim.suspend()
    wait_for(lambda: scene.cluster.job("train").clients == 1, what="the reader to be given up", timeout=30)
    victim.go_on()
    _other, suspended = scene.ended()
    assert any("was counted as lost" in text for text in suspended["warnings"])
    assert len(other.got) > 200
    scene.check_each_once(4_000, again=told_as_again(scene))


@pytest.mark.slow
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_reader_suspended_for_almost_the_time_out_loses_nothing_of_what_it_had(tmp_path: Path, transfer: str) -> None:
    with Scene(tmp_path, client_timeout_ms=4_000) as scene:
        scene.register(dsnb.Dataset.range(2_000))
        reader = scene.read(transfer=transfer, pause_s=0.002)
        scene.wait_for(reader, 100)
        scene.suspend(reader.process.pid, 3.5)  # it suspects after 3 s that it was given up; the dispatcher waits 4 s
        scene.go_on()
        scene.ended()
        scene.check_each_once(2_000, again=told_as_again(scene))


@pytest.mark.slow
def test_the_only_reader_of_a_pass_comes_back_to_where_it_was(scene: Scene) -> None:
    scene.register(dsnb.Dataset.range(1_000))
    victim = scene.read(job_name="", pause_s=0.002)
    scene.wait_for(victim, 200)
    victim.suspend()
    wait_for(lambda: not any(job.clients for job in scene.cluster.status().jobs), what="it to be given up", timeout=30)
    victim.go_on()
    scene.ended()
    scene.check_each_once(1_000, again=told_as_again(scene))


def told_as_again(scene: Scene) -> int:
    """How many elements reached two readers, as the dispatcher announced: over gRPC, those of the last milliseconds."""
    told = [re.search(r"([\d,]+) elements? reached two readers", event) for event in scene.events]
    return sum(int(match[1].replace(",", "")) for match in told if match)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 32])
def test_elements_in_a_batch_that_a_killed_reader_had_begun_are_not_lost(scene: Scene, batch: int) -> None:
    scene.register(dsnb.Dataset.range(2_000).map(paced(0.002)))
    scene.read(batch=batch, gate=scene.gate)
    victim = scene.read(batch=batch, pause_s=0.01, transfer="shared_memory")
    scene.wait_for(victim, 96)
    # Long before all is produced: once nothing is left for the other reader, it ends, and does not wait for the victim.
    scene.open_gate()
    victim.kill()
    scene.ended()
    scene.check_each_once(2_000, in_hand=max(1, batch))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["is suspended", "leaves"])
def test_elements_that_a_reader_alone_has_are_counted_when_it_does_not_consume_them(scene: Scene, what: str) -> None:
    """Of a dead worker whose part cannot be made again; they are nobody's when their reader goes."""
    scene.register(dsnb.Dataset.range(3_000).map(paced(0.0005), num_parallel_calls=2, deterministic=False))
    shared = {"trainer": "a", "cache": {"on_lag": "wait"}, "transfer": "shared_memory"}
    end = {"stop_after": 600} if what == "leaves" else {}
    victim = scene.read(pause_s=0.004, **shared, **end)
    scene.wait_for(victim, 400)
    scene.workers[0].kill()
    scene.workers[0].wait_for_exit()
    wait_for(lambda: len(scene.cluster.job("train").tasks) == 1, what="its part to be given up", timeout=30)
    if what == "is suspended":
        victim.suspend()
        wait_for(lambda: scene.cluster.job("train").clients == 0, what="the reader to be given up", timeout=30)
        victim.go_on()
    else:
        scene.read(**shared)
    scene.ended()
    told = [re.search(r"([\d,]+) elements of .* did not reach trainer 'a'", event) for event in scene.events]
    lost = sum(int(match[1].replace(",", "")) for match in told if match)
    came = scene.counts("a")
    assert 3_000 - len(came) == lost > 0, "\n".join(scene.events)
    assert set(came.values()) == {1}, "an element came twice"
    assert scene.cluster.job("train").lost_splits == lost


@pytest.mark.slow
def test_the_last_batch_of_a_reader_is_not_counted_as_lost(scene: Scene) -> None:
    """It holds elements of a worker that is gone, while the pass waits for another trainer."""
    scene.register(dsnb.Dataset.range(3_000).map(paced(0.005), num_parallel_calls=2, deterministic=False))
    shared = {"cache": {"on_lag": "wait"}, "transfer": "shared_memory"}
    scene.read(trainer="a", batch=5_000, gate=scene.gate, **shared)
    other = scene.read(trainer="b", pause_s=0.004, gate=scene.gate, **shared)
    scene.open_gate()
    scene.wait_for(other, 100)
    scene.workers[0].kill()
    wait_for(lambda: len(scene.cluster.job("train").tasks) == 1, what="its part to be given up", timeout=30)
    other.kill()
    wait_for(lambda: scene.cluster.job("train").clients == 1, what="the other to be given up", timeout=30)
    scene.ended()
    told = [re.search(r"([\d,]+) elements of .* did not reach trainer 'a'", event) for event in scene.events]
    lost = sum(int(match[1].replace(",", "")) for match in told if match)
    assert 3_000 - len(scene.counts("a")) == lost, "\n".join(scene.events)
