"""How many schedules a minute the state machines of the dispatcher core and the shared log go through.

python -m benchmarks.schedules [--schedules 300] [--steps 50]

A schedule is a sequence of up to so many joins, losses, restarts, requests and leaps of time, with all promises checked
after each step and the journal replayed at the end. Counted in wall time, and in the processor's time of this process,
which is what a quiet core would give. The target is 2,000 of each a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET_PER_MINUTE = 2_000


def main() -> int:
    """Measure each machine and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=300)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))  # the machines are tests of a checkout
    rates = [measure(name, run, given.schedules, given.steps) for name, run in machines().items()]
    met = all(rate >= TARGET_PER_MINUTE for rate in rates)
    print(
        f"the target of {TARGET_PER_MINUTE:,} a minute of each, in the processor's time: {'holds' if met else 'MISSED'}"
    )
    return 0 if met else 1


def machines() -> dict[str, Callable[[int, int], None]]:
    """All state machines by name."""
    from tests.dispatcher import test_core
    from tests.worker import test_shared_log

    window = {
        f"shared log, {machine.__name__}": lambda count, steps, machine=machine: test_shared_log.run_schedules(
            machine, count, steps
        )
        for machine in test_shared_log.MACHINES
    }
    return {"dispatcher core": test_core.run_schedules, **window}


def measure(name: str, run: Callable[[int, int], None], count: int, steps: int) -> float:
    """Run one machine's schedules; how many a minute of the processor's time."""
    began, cpu = time.perf_counter(), time.process_time()
    run(count, steps)
    wall_rate = 60 * count / (time.perf_counter() - began)
    cpu_rate = 60 * count / (time.process_time() - cpu)
    print(f"{name:36} {cpu_rate:8,.0f} a minute of the processor's time, {wall_rate:8,.0f} of wall time", flush=True)
    return cpu_rate


if __name__ == "__main__":
    sys.exit(main())
