"""How long it takes from `start` to the first element, and where that goes; for thread and process workers.

Each run is a fresh interpreter, as a kernel is that was just started, and times each step of a first cell. The steps
that a worker process takes for itself (an interpreter, its imports) are run apart, to be compared with the whole.

    python -m benchmarks.first_element [--runs 10] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks.sections import machine, table, write_section

FIRST_CELL = """
import json, sys, time

laps, last = {}, time.perf_counter()

def lap(name):
    global last
    now = time.perf_counter()
    laps[name], last = 1000 * (now - last), now

import dsnb
dsnb.start, dsnb.Dataset, dsnb.distribute
lap("import")
svc = dsnb.start(workers=2, isolation=sys.argv[1])
lap("start")
squares = dsnb.Dataset.range(10).map(lambda x: x * x)
squares = squares.apply(dsnb.distribute("parallel_epochs", svc))
lap("register")
elements = iter(squares).start()
lap("join")
next(elements)
lap("element")
elements.close()
last = time.perf_counter()
elements = iter(squares)
next(elements)
lap("again")
elements.close()
last = time.perf_counter()
svc.stop()
lap("stop")
print(json.dumps(laps))
"""
STEPS = {
    "import": "`import dsnb`, NumPy and gRPC among it",
    "start": "`dsnb.start(workers=2)`: dispatcher, workers, their registration",
    "register": "describe the pipeline and register it",
    "join": "`iter(dataset).start()`: job, tasks, streams",
    "element": "the first `next`: fetch and build the pipeline, first frame",
}
LATER_STEPS = {"again": "a second pass, `iter` to its first element", "stop": "`svc.stop()`"}
SEPARATE_STEPS = {
    "an interpreter that does nothing": "pass",
    "NumPy and gRPC alone": "import numpy, grpc",
    "what a worker process imports": "import dsnb.worker.__main__",
}
ISOLATIONS = ("thread", "process")


def environment_writing_bytecode() -> dict[str, str]:
    """This one, with compiled files written: a first run after an installation is another matter."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def time_first_cell(isolation: str) -> dict[str, float]:
    """Milliseconds of each step, in a fresh interpreter."""
    words = [sys.executable, "-c", FIRST_CELL, isolation]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=True, timeout=120, env=environment_writing_bytecode()
    )
    laps: dict[str, float] = json.loads(done.stdout)
    return laps


def time_command(code: str) -> float:
    """Milliseconds that an interpreter takes for some code, its own start and end among them."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment_writing_bytecode())
    return 1000 * (time.perf_counter() - began)


def measure(runs: int) -> tuple[dict[str, list[dict[str, float]]], dict[str, list[float]]]:
    """All runs, interleaved, after one that is not counted."""
    cells: dict[str, list[dict[str, float]]] = {name: [] for name in ISOLATIONS}
    separate: dict[str, list[float]] = {name: [] for name in SEPARATE_STEPS}
    for run in range(runs + 1):
        for name in ISOLATIONS:
            cells[name] += [time_first_cell(name)][: 1 if run else 0]
        for name, code in SEPARATE_STEPS.items():
            separate[name] += [time_command(code)][: 1 if run else 0]
    return cells, separate


def report(cells: dict[str, list[dict[str, float]]], separate: dict[str, list[float]], runs: int) -> str:
    """Two tables: the steps of a first cell, and parts of them by themselves."""

    def row(name: str, steps: tuple[str, ...]) -> list[str]:
        return [name, *(spread([sum(laps[step] for step in steps) for laps in cells[kind]]) for kind in ISOLATIONS)]

    rows = [row(name, (step,)) for step, name in STEPS.items()]
    rows.append(row("**from `import` to the first element**", tuple(STEPS)))
    rows.append(row("**from `start` to the first element**", tuple(STEPS)[1:]))
    rows += [row(name, (step,)) for step, name in LATER_STEPS.items()]
    parts = [[name, spread(times)] for name, times in separate.items()]
    return (
        f"Measured with `python -m benchmarks.first_element --runs {runs}` on {machine()}. Milliseconds, medians with "
        f"the fastest and slowest run.\n\n{table(('step', 'thread workers', 'process workers'), rows)}\n\n"
        f"By themselves, each in an interpreter of its own:\n\n{table(('part', 'ms'), parts)}"
    )


def spread(times: list[float]) -> str:
    """A median with the fastest and the slowest."""
    return f"{statistics.median(times):,.0f} ({min(times):,.0f} to {max(times):,.0f})"


def main() -> None:
    """Measure, print, and write it into the documentation if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="fresh interpreters of each kind (default: 10)")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/first_look.md")
    options = parser.parse_args()
    text = report(*measure(options.runs), options.runs)
    print(text)
    if options.write:
        write_section("first_look.md", "first_element", text)


if __name__ == "__main__":
    main()
