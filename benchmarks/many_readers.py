"""What a reader costs: memory, threads and idle processor time, in the worker, the dispatcher and its own process.

Dispatcher, worker and readers run in processes of their own. Each reading process opens one reader, and what it and the
servers hold then is the base; then all open the rest, each reader has one element, and the growth is divided by their
number. Then nobody does anything for a while, and what that costs is measured.

    python -m benchmarks.many_readers [--readers 256] [--processes 4] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.estimates import estimate
from benchmarks.sections import machine, table, write_section
from benchmarks.servers import first_line, pids_of, service

KINDS = {
    "one element allowed ahead (`max_outstanding_requests=1`)": "lean",
    "default: its buffer filled": "full",
    "a trainer of its own (`CrossTrainerCache`), one element ahead": "trainer",
}
WINDOWS = 5
"""How often the idle time is measured."""
IDLE_COLUMNS = ("worker", "dispatcher", "readers")
CHILD = """
import json, sys
import dsnb

target, kind, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def reader(number):
    options = {} if kind == "full" else {"max_outstanding_requests": 1}
    if kind == "trainer":
        options["cross_trainer_cache"] = dsnb.CrossTrainerCache(f"trainer {number}")
    data = dsnb.from_dataset_id("parallel_epochs", target, "numbers", job_name=kind, **options)
    elements = iter(data)
    next(elements)
    return elements

held = [reader(first)]
print("BASE", flush=True)
input()
held += [reader(first + number) for number in range(1, count)]
print("OPEN", flush=True)
input()
for elements in held:
    elements.close()
"""


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """What a process uses at a moment: resident bytes, threads, and the processor's seconds so far."""

    rss: int
    threads: int
    cpu_s: float

    @classmethod
    def sample(cls, pid: int) -> ProcessUsage:
        """By what the system tells."""
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(
            rss=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
            threads=int(fields[17]),
            cpu_s=(int(fields[11]) + int(fields[12])) / ticks,
        )


@contextlib.contextmanager
def reader_processes(target: str, kind: str, processes: int, each: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of readers, with one reader each."""
    with contextlib.ExitStack() as stack:
        children = []
        for number in range(processes):
            words = [sys.executable, "-c", CHILD, target, kind, str(number * each), str(each)]
            child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            children.append(stack.enter_context(child))
            stack.callback(child.kill)
        for child in children:
            first_line(child)
        yield children


def continue_all(children: list[subprocess.Popen[str]]) -> None:
    """Let them go on."""
    for child in children:
        if child.stdin is not None:
            child.stdin.write("\n")
            child.stdin.flush()


def measure(target: str, servers: dict[str, int], kind: str, processes: int, each: int, idle_s: float) -> list[str]:
    """One row: KiB for each reader in worker, dispatcher and reading process, threads, idle shares of a core."""
    with reader_processes(target, kind, processes, each) as children:
        pids = [servers["worker"], servers["dispatcher"], *(child.pid for child in children)]
        base = [ProcessUsage.sample(pid) for pid in pids]
        continue_all(children)
        for child in children:
            first_line(child)
        time.sleep(1.0)  # what was asked for arrives, and buffers fill
        full = [ProcessUsage.sample(pid) for pid in pids]
        shares = [idle_shares(pids, idle_s) for _ in range(WINDOWS)]
        continue_all(children)
        for child in children:
            child.wait(60)
    grown = [(after.rss - before.rss) / 1024 for before, after in zip(base, full, strict=True)]
    threads = [after.threads - before.threads for before, after in zip(base, full, strict=True)]
    more = processes * (each - 1)
    memory = [f"{grown[0] / more:,.0f}", f"{grown[1] / more:,.0f}", f"{sum(grown[2:]) / more:,.0f}"]
    counts = [f"{threads[0] / more:.1f}", f"{threads[1] / more:.1f}", f"{sum(threads[2:]) / more:.1f}"]
    return [*memory, " + ".join(counts), *(percent(window[who] for window in shares) for who in IDLE_COLUMNS)]


def idle_shares(pids: list[int], idle_s: float) -> dict[str, float]:
    """The part of a core that each kind of process takes while nobody does anything; worker, dispatcher and readers."""
    before = [ProcessUsage.sample(pid).cpu_s for pid in pids]
    time.sleep(idle_s)
    worker, dispatcher, *readers = (
        (ProcessUsage.sample(pid).cpu_s - cpu_s) / idle_s for pid, cpu_s in zip(pids, before, strict=True)
    )
    return dict(zip(IDLE_COLUMNS, (worker, dispatcher, sum(readers)), strict=True))


def percent(shares: Iterable[float]) -> str:
    """The median in percent, with its interval."""
    found = estimate([100 * share for share in shares])
    return f"{found.value:.1f} % ({found.low:.1f} to {found.high:.1f})"


def main() -> None:
    """Measure all kinds, print them, and write them into the documentation if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=256, help="readers at once (default: 256)")
    parser.add_argument("--processes", type=int, default=4, help="processes that they are in (default: 4)")
    parser.add_argument("--idle", type=float, default=5.0, metavar="SECONDS", help="how long to do nothing, each time")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/readers.md")
    options = parser.parse_args()
    import dsnb

    rows = []
    for name, kind in KINDS.items():
        with service() as target:
            dsnb.register_dataset(target, dsnb.Dataset.range(1_000_000).map(lambda x: x).repeat(), dataset_id="numbers")
            each = options.readers // options.processes
            servers = pids_of(("worker", "dispatcher"))
            rows.append([name, *measure(target, servers, kind, options.processes, each, options.idle)])
    idle = [f"{options.readers} that idle, {who}" for who in IDLE_COLUMNS]
    memory = [f"KiB in {process}" for process in ("the worker", "the dispatcher", "its own process")]
    columns = ["each reader", *memory, "threads in these", *idle]
    text = (
        f"Measured with `python -m benchmarks.many_readers --readers {options.readers}` on {machine()}; "
        f"one worker, {options.processes} processes of readers; the last columns are parts of a core.\n\n"
        f"{table(columns, rows)}"
    )
    print(text)
    if options.write:
        write_section("readers.md", "many_readers", text)


if __name__ == "__main__":
    main()
