"""Random attacks on readers, workers and the dispatcher: what came and what was reported agree, element by element.

In each of them, one process has a failpoint that kills or suspends it (`DSNB_FAULT`).

`python -m tests.faults.test_chaos 4711` repeats one of them.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.faults.attack import STATIC, Attack, draw
from tests.faults.chaos import END_S, Scene

SHORT = range(3)
SOAK = 200
HOUR_S = float(os.environ.get("DSNB_TEST_HOUR_S", "3600"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SHORT)
def test_what_came_and_what_was_reported_agree_element_by_element(seed: int, tmp_path: Path) -> None:
    Attack(draw(seed), tmp_path).run()


@pytest.mark.soak
@pytest.mark.parametrize("run", range(SOAK))
def test_they_agree_whatever_the_seed(run: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"run {run}: {draw(seed)}\n")
    Attack(draw(seed), tmp_path).run()


@pytest.mark.soak
@pytest.mark.timeout(2 * HOUR_S)
def test_they_agree_in_a_service_that_is_attacked_for_an_hour(tmp_path: Path) -> None:
    """One dispatcher (and those that follow it on its work folder) has all jobs; what it takes does not grow."""
    until, random_, memory = time.monotonic() + HOUR_S, random.SystemRandom(), list[int]()
    deviations: list[str] = []
    with Scene(tmp_path, workers=0, work_dir=tmp_path / "work", job_gc_timeout_ms=60_000) as scene:
        for round_ in itertools.count():
            plan = next(
                plan for plan in map(draw, iter(lambda: random_.randrange(1 << 32), -1)) if plan.mode not in STATIC
            )
            sys.stdout.write(f"round {round_}: {plan}\n")
            folder = tmp_path / f"round{round_}"
            folder.mkdir()
            for worker in scene.living[plan.workers :]:
                worker.terminate()
                scene.leaving.append(worker)
            while scene.leaving:
                scene.leaving.pop().wait_for_exit(timeout=END_S)
            while len(scene.living) < plan.workers:
                scene.add_worker()
            scene.cluster.service.wait_until(lambda status, plan=plan: len(status.workers) == plan.workers, 60.0)
            scene.readers.clear()
            try:
                Attack(plan, folder, job=f"round{round_}").carry_out(scene)
            except AssertionError as error:
                deviations.append(f"round {round_}: {error}")
                sys.stdout.write(f"DEVIATION in {deviations[-1]}\n")
                scene.end_readers()
            memory.append(resident_bytes())
            if time.monotonic() > until:
                break
    settled = len(memory) // 3
    sys.stdout.write(f"{len(memory)} rounds; resident MB: {[nbytes >> 20 for nbytes in memory]}\n")
    assert not deviations, "\n\n".join(deviations)
    assert memory[-1] < memory[settled] + (64 << 20), "the dispatcher's process grows"


def resident_bytes() -> int:
    """Memory of this process, which has the dispatcher."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(*seeds: str) -> None:
    """Carry out the attacks of these seeds one after another."""
    for seed in map(int, seeds):
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(f"{draw(seed)}\n")
            Attack(draw(seed), Path(folder)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
