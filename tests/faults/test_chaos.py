"""Random attacks on readers, workers and the dispatcher: what came and what was reported agree, element by element.

`python -m tests.faults.test_chaos 4711` repeats one of them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.attack import Attack, draw

SHORT = range(8)
SOAK = 200


@pytest.mark.parametrize("seed", SHORT)
def test_what_came_and_what_was_reported_agree_element_by_element(seed: int, tmp_path: Path) -> None:
    Attack(draw(seed), tmp_path).run()


@pytest.mark.soak
@pytest.mark.parametrize("run", range(SOAK))
def test_they_agree_whatever_the_seed(run: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"run {run}: {draw(seed)}\n")
    Attack(draw(seed), tmp_path).run()


def main(*seeds: str) -> None:
    """Carry out the attacks of these seeds one after another."""
    for seed in map(int, seeds):
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(f"{draw(seed)}\n")
            Attack(draw(seed), Path(folder)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
