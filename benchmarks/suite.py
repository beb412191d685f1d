"""Measures dsnb next to its peers, in one run, and writes docs/performance.md.

    python -m benchmarks                        all workloads (30 to 40 minutes), and the page
    python -m benchmarks --quick                less of everything; prints the tables and writes no page
    python -m benchmarks --only scalars noisy   workloads whose names begin so, again; the page from all results
    python -m benchmarks --page                 the page again from the results that are there

Contenders of a workload take turns. Each runs in processes of its own and in an environment of its own, which is built
on first use (`python -m benchmarks.environments` builds all). One that computes while it has nothing to do would take
the processor from the others: it is started for each of its turns, and ended behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import photos
from benchmarks.contender import Contender, ContenderError
from benchmarks.environments import ENVIRONMENTS, EnvironmentMissingError, benchmarks_folder, python_of, versions_of
from benchmarks.peers.serving import Figures
from benchmarks.report import page, unmet
from benchmarks.results import ResultsFile, WorkloadResult, new_result
from benchmarks.sections import write_section
from benchmarks.workloads import WORKLOADS, ContenderSpec, Workload

_MIN_RUNS = 3
"""Measurements of each contender where time is short."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to measure.

    Args:
        runs: Measurements of each contender.
        speed_up: By what the time of one measurement is divided.
        minutes: How long all may take; behind that, measurements are made less often.
        python: Gives the interpreter of an environment.
        log: Takes a line about progress.
    """

    runs: int = 5
    speed_up: float = 1.0
    minutes: float = 40.0
    python: Callable[[str], Path] = python_of
    log: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)


def measure(workload: Workload, plan: Plan) -> WorkloadResult:
    """Measure one workload; who cannot take part, or falls out, is noted with the reason."""
    measured = new_result(min(plan.runs, workload.runs))
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Callable[[], Figures]] = {}
        for name, entry in workload.contenders.items():
            with _record_failure(measured, name, plan):
                contenders[name] = _open_contender(partial(_start, entry, workload, plan), stack)
                measured.samples[name] = []
        for run in range(measured.runs):
            _one_round(contenders, run, measured, plan)
    measured.samples = {name: found for name, found in measured.samples.items() if found}
    return measured


def _open_contender(start: Callable[[], Contender], stack: contextlib.ExitStack) -> Callable[[], Figures]:
    """Have a contender there, and what makes a measurement with it."""
    with contextlib.ExitStack() as mine:
        made = mine.enter_context(contextlib.closing(start()))
        made.wait_ready()
        if not made.uses_cpu_when_idle():
            stack.push(mine.pop_all())
            return made.measure
    return partial(_measure_once, start)


def _measure_once(start: Callable[[], Contender]) -> Figures:
    with contextlib.closing(start()) as made:
        made.wait_ready()
        return made.measure()


def _start(entry: ContenderSpec, workload: Workload, plan: Plan) -> Contender:
    task = replace(entry.task, seconds=entry.task.seconds / plan.speed_up)
    if task.data == "images":
        task = replace(task, options={**task.options, "photos": str(photos.photo_folder(plan.python("dsnb")))})
    return Contender(plan.python(entry.environment), entry.module, task, workload.deadline_s, entry.root)


def _one_round(contenders: dict[str, Callable[[], Figures]], run: int, measured: WorkloadResult, plan: Plan) -> None:
    """One measurement of each; who comes first changes from round to round."""
    names = list(contenders)
    shift = run % max(1, len(names))
    for name in names[shift:] + names[:shift]:
        with _record_failure(measured, name, plan):
            measured.samples[name].append(contenders[name]())
        if name in measured.missing:
            del contenders[name]


@contextlib.contextmanager
def _record_failure(measured: WorkloadResult, name: str, plan: Plan) -> Iterator[None]:
    """Note that a contender fell out."""
    try:
        yield
    except (ContenderError, EnvironmentMissingError, OSError, subprocess.SubprocessError) as error:
        measured.missing[name] = str(error)
        measured.samples.pop(name, None)
        plan.log(f"  {name}: {error}")


def measure_all(names: Sequence[str], plan: Plan, store: ResultsFile) -> None:
    """Measure these workloads one after the other, and keep each."""
    start = time.monotonic()
    for number, name in enumerate(names):
        began = time.monotonic()
        late = began - start > 60 * plan.minutes * number / len(WORKLOADS)
        measured = measure(WORKLOADS[name], replace(plan, runs=min(plan.runs, _MIN_RUNS)) if number and late else plan)
        store.save(name, measured, versions_of(ENVIRONMENTS))
        plan.log(f"{number + 1:2}/{len(names)} {name:16} {time.monotonic() - began:5.1f} s, {measured.runs} runs each")


def select_workloads(prefixes: Sequence[str] | None) -> list[str]:
    """The workloads whose names begin so; all if nothing is said."""
    return [name for name in WORKLOADS if not prefixes or name.startswith(tuple(prefixes))]


def main() -> int:
    """Measure what the arguments say."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # contenders are ended, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="measurements of each contender (default: 5)")
    parser.add_argument("--minutes", type=float, default=40, help="how long all may take, about (default: 40)")
    parser.add_argument("--quick", action="store_true", help="two short measurements each, and no page")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads whose names begin so")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    options = parser.parse_args()
    if not (names := select_workloads(options.only)):
        parser.error(f"no such workload; there are {', '.join(WORKLOADS)}")
    store = ResultsFile(benchmarks_folder() / ("quick.json" if options.quick else "results.json"))
    if not options.page:
        plan = Plan(runs=2, speed_up=2.5) if options.quick else Plan(runs=options.runs, minutes=options.minutes)
        measure_all(names, plan, store)
    text = page(store, "python -m benchmarks")
    print(store.text() if options.json else text)
    if not options.quick:
        write_section("performance.md", "suite", text)
    below = unmet({name: one.samples for name, one in store.workloads.items()})
    print(f"{len(below)} rows of the table are below target or not measured", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
