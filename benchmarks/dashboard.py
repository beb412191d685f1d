"""What the dashboard costs: its server's processor time and bytes sent, for each open tab at two looks a second.

A service with four trainers and two workers runs here; `dsnb dashboard` runs in a process of its own, so that its
processor time is its own; Chromium opens the tabs through a relay that counts what the server sends. Counted is
processor time, not time by the clock, and the growth from one number of tabs to the next, so that what else the machine
does hardly shows.

Then the other side, in turns of one run with somebody watching and nobody: what a worker that has all its time taken
produces for each second of its processor time, and how much more of a core the dispatcher takes, which is what it can
do less. A processor that the browser needs is not the service's doing, so here the page is asked for and never drawn.

    python -m benchmarks.dashboard [--seconds 20] [--tabs 3] [--turns 7] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from playwright.sync_api import BrowserContext, Page, sync_playwright

import dsnb
from benchmarks.sections import machine, table, write_section

CPU_GOAL, BYTES_GOAL, REMAINING_WORK_GOAL = 0.03, 15_000, 0.98
PAUSES = {"lr=0.1": 0.01, "lr=0.03": 0.02, "lr=0.01": 0.06, "lr=0.003": 0.1}
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]
_SETTLE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the dashboard's process used in a while: seconds of processor time, and bytes sent, each second."""

    tabs: int
    cpu: float
    sent: float
    heap: float


class Relay:
    """Passes connections on to a port, and counts the bytes that come back from it."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                browser, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                threading.Thread(target=self._forward, args=(browser, server, 0), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, browser, 1), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, counts: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.sent += counts * len(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


def decode(number: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Half a millisecond of work."""
    until = time.thread_time() + 0.0005
    while time.thread_time() < until:
        pass
    return np.full(256, number, np.float32)


@contextlib.contextmanager
def training(service: dsnb.DataService) -> Iterator[None]:
    """Four trainers of different pace that share one pass."""
    end = threading.Event()

    def read(trainer_id: str, pause: float) -> None:
        cache = dsnb.CrossTrainerCache(trainer_id)
        shared = dsnb.distribute("distributed_epoch", service, job_name="train", cross_trainer_cache=cache)
        for _ in dsnb.Dataset.range(20_000).map(decode).shuffle(200).batch(8).repeat().apply(shared):
            if end.wait(pause):
                return

    threads = [threading.Thread(target=read, args=trainer) for trainer in PAUSES.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def dashboard(name: str) -> Iterator[tuple[int, str]]:
    """`dsnb dashboard` in a process of its own: its pid and its page's address."""
    command = [sys.executable, "-m", "dsnb", "dashboard", name, "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process.pid, line.split()[2].rstrip(";")
        process.terminate()


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def heap_of(page: Page) -> float:
    """What a page's scripts hold, after its garbage was collected."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"])


def measure_cost(pid: int, relay: Relay, pages: list[Page], seconds: float) -> Cost:
    """What the dashboard uses while so many tabs are open."""
    cpu, sent, began = cpu_of(pid), relay.sent, time.monotonic()
    if pages:
        pages[0].wait_for_timeout(1000 * seconds)
    else:
        time.sleep(seconds)
    span = time.monotonic() - began
    heap = heap_of(pages[0]) if pages else 0.0
    return Cost(tabs=len(pages), cpu=(cpu_of(pid) - cpu) / span, sent=(relay.sent - sent) / span, heap=heap)


def measure(context: BrowserContext, tabs: int, seconds: float) -> list[Cost]:
    """The cost of no tab, of one, and so on."""
    with (
        dsnb.start(workers=2, name="measured", cross_trainer_cache_size_bytes=4_000_000) as service,
        training(service),
        dashboard(service.name) as (pid, url),
    ):
        parts = urlsplit(url)
        relay = Relay(parts.port or 0)
        through = urlunsplit(parts._replace(netloc=f"127.0.0.1:{relay.port}"))
        pages: list[Page] = []
        costs = []
        while True:
            time.sleep(_SETTLE_S)
            costs.append(measure_cost(pid, relay, pages, seconds))
            if len(pages) == tabs:
                relay.close()
                return costs
            pages.append(context.new_page())
            pages[-1].goto(through)
            pages[-1].wait_for_selector("html[data-ready]")


@contextlib.contextmanager
def saturated(service: dsnb.DataService) -> Iterator[None]:
    """One trainer that reads as fast as it gets: many splits for the dispatcher, much work for the workers."""
    end = threading.Event()

    def read() -> None:
        shared = dsnb.distribute("distributed_epoch", service, job_name="train")
        for _ in dsnb.Dataset.range(2_000).map(decode).batch(8).repeat().apply(shared):
            if end.is_set():
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@dataclass(frozen=True, kw_only=True)
class WorkRate:
    """What was done in a while: elements for each second of the worker's processor time, and cores of this process."""

    by_worker: float
    cores_here: float


def work_done(service: dsnb.DataService, seconds: float) -> WorkRate:
    """Look at a service for a while; this process has its dispatcher and its reader."""

    def now() -> tuple[int, float, float]:
        workers = service.status().workers
        return sum(w.produced for w in workers), sum(cpu_of(w.pid) for w in workers), time.process_time()

    made, busy, here = now()
    began = time.monotonic()
    time.sleep(seconds)
    later, span = now(), time.monotonic() - began
    return WorkRate(by_worker=(later[0] - made) / (later[1] - busy), cores_here=(later[2] - here) / span)


def measure_watched(turns: int, seconds: float) -> dict[str, float]:
    """What is left for the service's own work while somebody watches, as parts of one: medians of the turns."""
    worker, dispatcher = [], []
    with dsnb.start(workers=1, name="watched", isolation="process") as service, saturated(service):
        service.wait_until(lambda now: any(worker.produced > 1000 for worker in now.workers))
        for _ in range(turns):
            before = work_done(service, seconds)
            with dashboard(service.name) as (_, url):
                urllib.request.urlopen(url, timeout=30).read()  # the first page begins the feed
                time.sleep(1.0)
                watched = work_done(service, seconds)
            after = work_done(service, seconds)
            worker.append(2 * watched.by_worker / (before.by_worker + after.by_worker))
            dispatcher.append(1 - watched.cores_here + (before.cores_here + after.cores_here) / 2)
    return {"worker": median(worker), "dispatcher": median(dispatcher)}


def main() -> int:
    """Measure, and print a table; the exit code tells whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tabs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/watching.md")
    args = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        context = playwright.chromium.launch_persistent_context(folder, executable_path=browser, args=BROWSER_ARGUMENTS)
        costs = measure(context, args.tabs, args.seconds)
        context.close()
    remaining = measure_watched(args.turns, args.seconds / 4)
    text = report(costs, remaining)
    print(text)
    if args.write:
        write_section("watching.md", "dashboard", text)
    return 0 if _met(costs, remaining) else 1


def per_tab(costs: list[Cost]) -> tuple[float, float]:
    """Cores and bytes a second that one more tab costs."""
    tabs = costs[-1].tabs
    return (costs[-1].cpu - costs[0].cpu) / tabs, (costs[-1].sent - costs[0].sent) / tabs


def report(costs: list[Cost], remaining: Mapping[str, float]) -> str:
    """The figures as the documentation has them."""
    cpu, sent = per_tab(costs)
    rows = [[str(c.tabs), f"{c.cpu:.3f}", f"{c.sent / 1000:.1f}", f"{c.heap / 1e6:.1f}"] for c in costs]
    parts = [[role, f"{100 * part:.1f} %"] for role, part in remaining.items()]
    return "\n".join(
        (
            f"{machine()}.\n",
            table(["open tabs", "cores of the page's server", "kB/s sent", "MB of a page's heap"], rows),
            f"\nFor each tab {cpu:.3f} core and {sent / 1000:.1f} kB/s; goals: {CPU_GOAL} and {BYTES_GOAL / 1000:g}.\n",
            table(["while somebody watches", "left for its own work"], parts),
            f"\nThe goal is {100 * REMAINING_WORK_GOAL:g} %.",
        )
    )


def _met(costs: list[Cost], remaining: Mapping[str, float]) -> bool:
    cpu, sent = per_tab(costs)
    return cpu <= CPU_GOAL and sent <= BYTES_GOAL and min(remaining.values()) >= REMAINING_WORK_GOAL


if __name__ == "__main__":
    sys.exit(main())
