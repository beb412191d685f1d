"""What a scrape of the metrics costs the dispatcher: its processor time, with 16 workers and 16 trainers.

Dispatcher, workers and trainers run in three processes. In turns, the metrics are requested five times a second, and
nobody requests them; the difference of the dispatcher's processor time, divided by the number of requests, is the cost
of one. It has two parts: a status (asking all workers and clients for a report, and making a snapshot of the answers),
which the dashboard costs too, and the text, which is measured here by itself, from the same snapshot.

    python -m benchmarks.metrics [--workers 16] [--trainers 16] [--seconds 5] [--turns 5] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.sections import machine, table, write_section
from benchmarks.servers import command, first_line
from dsnb.monitor.metrics import CounterHistory, follow, metrics_text, without_decreases
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import verdicts
from dsnb.monitor.watch import fetch_snapshot

GOAL_S = 0.002
_INTERVAL_S = 0.2
_TEXTS = 200
WORKERS = """
import sys
import dsnb

config = dsnb.WorkerConfig(dispatcher_address=sys.argv[1])
workers = [dsnb.WorkerServer(config) for _ in range(int(sys.argv[2]))]
print("READY", flush=True)
input()
for worker in workers:
    worker.stop()
"""
TRAINERS = """
import sys, threading
import dsnb

end = threading.Event()

def read(number):
    cache = dsnb.CrossTrainerCache(f"trainer {number}")
    shared = dsnb.distribute("parallel_epochs", sys.argv[1], job_name="train", cross_trainer_cache=cache)
    data = dsnb.Dataset.range(1000).map(abs).shuffle(10).batch(8).repeat().apply(shared)
    with iter(data) as elements:
        for _ in elements:
            if end.wait(0.1):
                return

threads = [threading.Thread(target=read, args=(number,)) for number in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
print("READY", flush=True)
input()
end.set()
for thread in threads:
    thread.join()
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of processor time: for one request, for its text alone, and for each second of the dispatcher."""

    scrape: float
    text: float
    idle: float
    series: int


@contextlib.contextmanager
def child(code: str, target: str, count: int) -> Iterator[None]:
    """A process of workers or trainers, from when it is ready."""
    words = [sys.executable, "-c", code, target, str(count)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            first_line(process)
            yield
            process.communicate("\n", timeout=60)
        finally:
            process.kill()


@contextlib.contextmanager
def service(workers: int, trainers: int) -> Iterator[tuple[int, str, str]]:
    """A service whose trainers read: the dispatcher's pid, its target and the address of its metrics."""
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as folder:
        token = Path(folder, "token")
        os.environ["DSNB_RUNTIME_DIR"] = folder
        with command("dispatcher", "--token-file", str(token), "--metrics-port", "0", "--json") as dispatcher:
            ready = json.loads(first_line(dispatcher))
            os.environ["DSNB_TOKEN"] = token.read_text(encoding="utf-8").strip()
            with child(WORKERS, ready["target"], workers), child(TRAINERS, ready["target"], trainers):
                wait_until_reading(ready["target"], trainers)
                yield dispatcher.pid, ready["target"], ready["metrics_url"]


def wait_until_reading(target: str, trainers: int) -> None:
    """Wait until each trainer has had some elements."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        job = fetch_snapshot(target, None).job("train")
        if job is not None and sum(trainer.elements > 10 for trainer in job.trainers) == trainers:
            return
        time.sleep(0.5)
    raise RuntimeError("the trainers did not begin to read within a minute")


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used, in nanoseconds' resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(pid) gives on Linux


def cpu_during(pid: int, url: str | None, seconds: float) -> tuple[float, int]:
    """The processor time of the dispatcher in a while, and how often the metrics were requested meanwhile."""
    before, began, count = cpu_of(pid), time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        if url is not None:
            urllib.request.urlopen(url, timeout=30).read()
            count += 1
        time.sleep(max(0.0, now + _INTERVAL_S - time.monotonic()))
    return cpu_of(pid) - before, count


def cpu_of_text(before: Snapshot, after: Snapshot) -> float:
    """The processor time of making the text of a snapshot, with verdicts and counters that do not decrease."""
    history: CounterHistory | None = None
    began = time.thread_time()
    for _ in range(_TEXTS):
        history = follow(history, after)
        metrics_text(without_decreases(history, after), verdicts(before, after))
    return (time.thread_time() - began) / _TEXTS


def measure(workers: int, trainers: int, seconds: float, turns: int) -> Cost:
    """Medians of the turns."""
    scrape, idle = [], []
    with service(workers, trainers) as (pid, target, url):
        before = fetch_snapshot(target, None)
        for _ in range(turns):
            quiet, _ = cpu_during(pid, None, seconds)
            busy, count = cpu_during(pid, url, seconds)
            later, _ = cpu_during(pid, None, seconds)
            scrape.append((busy - (quiet + later) / 2) / count)
            idle.append((quiet + later) / 2 / seconds)
        after = fetch_snapshot(target, None)
    lines = metrics_text(after).splitlines()
    return Cost(
        scrape=median(scrape),
        text=cpu_of_text(before, after),
        idle=median(idle),
        series=sum(not line.startswith("#") for line in lines),
    )


def report(cost: Cost, workers: int, trainers: int) -> str:
    """The figures as the documentation has them."""
    rows = [
        ["one scrape, in the dispatcher", f"{1000 * cost.scrape:.2f}"],
        ["of that: the text", f"{1000 * cost.text:.2f}"],
        ["the dispatcher in one second without scrapes", f"{1000 * cost.idle:.2f}"],
    ]
    return "\n".join(
        (
            f"{machine()}; {workers} workers, {trainers} trainers, {cost.series} series.\n",
            table(["metrics", "ms of processor time"], rows),
            f"\nThe goal for a scrape is {1000 * GOAL_S:g} ms.",
        )
    )


def main() -> int:
    """Measure, and print a table; the exit code tells whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--trainers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/watching.md")
    args = parser.parse_args()
    cost = measure(args.workers, args.trainers, args.seconds, args.turns)
    text = report(cost, args.workers, args.trainers)
    print(text)
    if args.write:
        write_section("watching.md", "metrics", text)
    return 0 if cost.scrape <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
