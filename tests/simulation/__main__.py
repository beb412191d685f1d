"""Runs simulations until the time is up, and prints how many there were and which seeds failed.

python -m tests.simulation --seconds 60 --seed 0       with seeds 0, 1, 2, ...
python -m tests.simulation --long                      of passes that outlast leases, see `draw_long`
python -m tests.simulation --record "1 process"        adds the counts to `runs.jsonl`, for `docs/reliability.md`
python -m tests.simulation --show 4711                 prints everything that happens in one of them
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import msgspec

from tests.simulation.checker import check
from tests.simulation.plan import Plan, draw, draw_long
from tests.simulation.service import Service

RUNS = Path(__file__).with_name("runs.jsonl")
"""The runs whose counts `docs/reliability.md` has."""


def run_seed(seed: int, *, long: bool = False) -> Service:
    """Run the simulation of a seed and check it."""
    return run_plan(draw_long(seed) if long else draw(seed))


def run_plan(plan: Plan) -> Service:
    """Run a simulation and check it."""
    service = Service(plan)
    try:
        service.run()
        check(service)
    except BaseException as error:
        error.service = service  # type: ignore[attr-defined]  # for `--show`
        raise
    return service


def show(seed: int, *, long: bool = False) -> int:
    """Print what happens in one simulation."""
    failed = None
    try:
        service = run_seed(seed, long=long)
    except Exception as error:  # noqa: BLE001 - printed below
        failed, service = error, error.service  # type: ignore[attr-defined]
    sys.stdout.write("\n".join([str(service.plan), *service.world.trace(), ""]))
    if failed is not None:
        traceback.print_exception(failed)
    return int(failed is not None)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of many simulations counted; a line of `runs.jsonl`."""

    day: str
    commit: str
    """The commit whose product code was simulated."""
    long: bool
    """Whether the passes outlasted leases, see `draw_long`."""
    first: int
    """The first seed."""
    schedules: int
    actions: int
    events: int
    """How many faults the schedules had."""
    seconds: float
    cpu_s: float
    conditions: str = ""
    """The machine, and what else ran on it."""
    failed: tuple[int, ...] = ()
    """The seeds that failed."""


def run_many(first: int, seconds: float, most: int, *, long: bool = False) -> Run:
    """Run simulations with consecutive seeds until the time is up; returns the counts."""
    until, failed, faults, seed, actions = time.monotonic() + seconds, list[int](), Counter[str](), first, 0
    began, cpu = time.monotonic(), time.process_time()
    while time.monotonic() < until and seed < first + most:
        try:
            service = run_seed(seed, long=long)
            actions += service.world.actions
            faults.update(event.fault.value for event in service.plan.events)
        except Exception as error:  # noqa: BLE001 - counted, and the next one runs
            failed.append(seed)
            where = traceback.extract_tb(error.__traceback__)[-1]
            sys.stdout.write(f"seed {seed} failed: {type(error).__name__}: {error} ({where.name}:{where.lineno})\n")
            sys.stdout.flush()
        seed += 1
    count, took, cpu_s = seed - first, time.monotonic() - began, time.process_time() - cpu
    for fault, times in sorted(faults.items()):
        sys.stdout.write(f"{times:8,}  {fault}\n")
    sys.stdout.write(
        f"{count:,} schedules, seeds {first} to {seed - 1}, {actions:,} actions, in {took:.0f} s "
        f"({cpu_s:.0f} s of processor time, {count * 3600 / max(took, 1e-9):,.0f} an hour); "
        f"{len(failed)} failed{': ' + ' '.join(map(str, failed[:50])) if failed else ''}\n"
    )
    return Run(
        day=time.strftime("%Y-%m-%d", time.gmtime()),
        commit=_commit(),
        long=long,
        first=first,
        schedules=count,
        actions=actions,
        events=faults.total(),
        seconds=round(took, 1),
        cpu_s=round(cpu_s, 1),
        failed=tuple(failed),
    )


def _commit() -> str:
    """The last commit that changed the product code."""
    command = ["git", "log", "-1", "--format=%h", "--", "dsnb"]
    return subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    ).stdout.strip()


def _record(run: Run, conditions: str) -> None:
    with RUNS.open("ab") as file:
        file.write(msgspec.json.encode(msgspec.structs.replace(run, conditions=conditions)) + b"\n")


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, default=1 << 60, help="the most schedules to run")
    parser.add_argument("--record", metavar="CONDITIONS", help="add the counts to runs.jsonl, with these conditions")
    parser.add_argument("--long", action="store_true", help="let passes outlast leases")
    parser.add_argument("--show", type=int, metavar="SEED", help="print what happens with one seed")
    arguments = parser.parse_args()
    if arguments.show is not None:
        return show(arguments.show, long=arguments.long)
    run = run_many(arguments.seed, arguments.seconds, arguments.schedules, long=arguments.long)
    if arguments.record:
        _record(run, arguments.record)
    return int(bool(run.failed))


if __name__ == "__main__":
    sys.exit(main())
