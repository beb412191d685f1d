"""Writes docs/reliability.md: what the simulator checks, how much it simulated, what it found, and the failpoints.

python tools/reliability.py

The promises are those that the simulator's checker reads, the counts those that its runs recorded, the faults of dsnb
those whose seeds the tests repeat, the failpoints those at which the tests stop processes.
tests/simulation/test_page.py fails when the page is not what this prints.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path instead

from tests.faults.points import TABLE  # noqa: E402
from tests.simulation.__main__ import RUNS, Run  # noqa: E402
from tests.simulation.found import FOUND, OPEN, Found  # noqa: E402
from tests.simulation.mutations import MUTATIONS  # noqa: E402
from tests.simulation.plan import Fault  # noqa: E402
from tests.simulation.promises import Reading, promise  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"

_TOP = """# How dsnb's promises are checked

[When something dies](failures.md) says what happens to the elements, and what users see of it. This page says how that
is checked by simulation: what must hold, how many schedules were simulated, and what they found. At the end are the
failpoints, at which tests stop real processes. The page is written by `python tools/reliability.py`;
`tests/simulation/test_page.py` fails if the page differs from what the script writes.

The simulator runs a dispatcher with its journal, workers with their pipelines, and clients, from dsnb's own code, under
one simulated clock, network and disk. A *schedule* is one run of such a service: the job, the latencies and the faults
are drawn from a seed, and a seed always gives the same run. Afterwards a checker compares what each user received with
what was promised and with what dsnb reported.

    python -m tests.simulation --seconds 3600 --seed 1     simulates for an hour
    python -m tests.simulation --long                      lets passes outlast the leases of workers and clients
    python -m tests.simulation --show 4711                 prints everything that happens in one schedule
"""

_PROMISES = """## What must hold

The rows are the faults, the columns are the ways to read finite data. Each schedule has up to four faults. This table
holds if they are all of one kind and fewer than four workers die. The simulated pipelines deliver the same elements in
the same order when they are repeated; [other pipelines](failures.md#a-worker-dies) have other promises.
"""

_PROMISES_NOTES = """### Faults of several kinds

Every element is received or reported as missing. Apart from parts that begin again, only elements of a client that was
killed or counted as lost come twice. If the workers of a job without the cross-trainer cache share the dataset, the
reported number of missing elements is exact.

### What is not simulated

Coordinated reads, endless data, power failures, processes that hang for good, and the transfers (TCP, gRPC, shared
memory). The tests that [when something dies](failures.md#the-tests) lists kill, suspend and disconnect real processes.
"""

_MUTATIONS = """## Whether the simulator notices mistakes

Each of these mistakes is made on purpose, in a process of its own, and the simulator must find it within a minute of
processor time (`tests/simulation/test_mutations.py`).
"""

_RUNS = """## How much was simulated

`python -m tests.simulation --record CONDITIONS` adds a line here. The rate depends on the machine and on what else it
does; a schedule that outlasts the leases takes longer.
"""

_FOUND = """## What the simulator found

The tests repeat each of these schedules (`tests/simulation/found.py`).
"""

_OPEN = """## What is not mended yet
"""

_FAILPOINTS = """## Failpoints

Each step that a promise depends on has a name, and the tests stop real processes before and after each of them:
SIGKILL, SIGSTOP, or the error of a full disk. A failpoint that is not in this table fails
`tests/faults/test_failpoints.py`. One that writes a file of its own is tried with that file alone, the others in a
service whose elements are compared. In each run of `tests/faults/test_chaos.py`, a worker or a client has one of those
that it passes while elements travel.

To try one by hand, set `DSNB_FAULT` for a process to `NAME/WHEN:ACTION` or `NAME/WHEN:ACTION:COUNT`, as in
`DSNB_FAULT='elements send/after:kill:3' dsnb worker ...`, which kills the worker when it has sent elements three times.
WHEN is `before` or `after`; ACTION is `kill`, `suspend` or, before a step that writes, `fail`.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def promises() -> str:
    """The promise for each fault and each way to read."""
    return table(
        ["what goes wrong", *(reading.value for reading in Reading)],
        ([fault.value, *(promise(reading, fault).text for reading in Reading)] for fault in Fault),
    )


def mutations() -> str:
    """The mistakes that the simulator must notice."""
    rows = ((f"`{name}`", inspect.getdoc(mutate) or "") for name, (mutate, _) in MUTATIONS.items())
    return table(["mistake", "what it does"], rows)


def recorded() -> list[Run]:
    """The runs that were recorded."""
    return [msgspec.json.decode(line, type=Run) for line in RUNS.read_bytes().splitlines()]


def runs(listed: Sequence[Run]) -> str:
    """The recorded runs and their sums."""
    head = (
        "day", "product code at", "passes", "first seed", "schedules", "faults", "processor time", "schedules an hour",
        "in an hour of processor time", "failed seeds", "conditions",
    )  # fmt: skip
    total = sum(run.schedules for run in listed)
    events = sum(run.events for run in listed)
    failed = sum(len(run.failed) for run in listed)
    told = f"In all: {total:,} schedules with {events:,} faults, of which {failed:,} broke a promise.\n"
    return f"{table(head, map(_run_row, listed))}\n{told}"


def _run_row(run: Run) -> tuple[str, ...]:
    return (
        run.day,
        f"`{run.commit}`",
        "outlast the leases" if run.long else "short",
        str(run.first),
        f"{run.schedules:,}",
        f"{run.events:,}",
        f"{run.cpu_s:,.0f} s",
        f"{run.schedules * 3600 / run.seconds:,.0f}",
        f"{run.schedules * 3600 / run.cpu_s:,.0f}",
        ", ".join(map(str, run.failed)) or "none",
        run.conditions,
    )


def found(listed: Sequence[Found]) -> str:
    """The schedules that broke a promise, those with the same commits together."""
    head = ("schedule", "what dsnb did wrong", "mended in")
    rows = []
    for commits, group in groupby(listed, key=lambda one: one.commits):
        mended = ", ".join(f"`{commit}`" for commit in commits) or "not yet"
        rows += [(f"`{one.call}`", one.wrong, mended) for one in group]
    return table(head, rows)


def failpoints() -> str:
    """The failpoints and what holds at them."""
    head = ("failpoints", "who passes them, and when", "what the tests do there", "what holds", "tests")
    rows = (
        (
            ", ".join(f"`{name}`" for name in points.names),
            points.where,
            ", ".join(points.actions),
            points.holds,
            f"`tests/{points.tests}`",
        )
        for points in TABLE
    )
    return table(head, rows)


def page() -> str:
    """The whole page."""
    parts = [
        _TOP, _PROMISES, promises(), _PROMISES_NOTES, _MUTATIONS, mutations(), _RUNS, runs(recorded()), _FOUND,
        found(FOUND), *([_OPEN, found(OPEN)] if OPEN else []),
        _FAILPOINTS, failpoints(),
    ]  # fmt: skip
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
