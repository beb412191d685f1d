"""What the dashboard costs: its server's processor time and bytes sent, for each open tab at two looks a second.

A service with four trainers and two workers runs here; `dsnb dashboard` runs in a process of its own, so that its
processor time is its own; Chromium opens the tabs through a relay that counts what the server sends. Counted is
processor time, not time by the clock, and the growth from one number of tabs to the next, so that what else the machine
does hardly shows.

    python -m benchmarks.dashboard [--seconds 20] [--tabs 3]
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from playwright.sync_api import BrowserContext, Page, sync_playwright

import dsnb
from benchmarks.sections import machine, table

CPU_GOAL, BYTES_GOAL = 0.06, 15_000
PAUSES = {"lr=0.1": 0.01, "lr=0.03": 0.02, "lr=0.01": 0.06, "lr=0.003": 0.1}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
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
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                browser, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._pass, args=(browser, server, 0), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, browser, 1), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: int) -> None:
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


def look(pid: int, relay: Relay, pages: list[Page], seconds: float) -> Cost:
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
            costs.append(look(pid, relay, pages, seconds))
            if len(pages) == tabs:
                relay.close()
                return costs
            pages.append(context.new_page())
            pages[-1].goto(through)
            pages[-1].wait_for_selector("html[data-ready]")


def main() -> int:
    """Measure, and print a table; the exit code tells whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tabs", type=int, default=3)
    args = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        context = playwright.chromium.launch_persistent_context(folder, executable_path=browser, args=ARGUMENTS)
        costs = measure(context, args.tabs, args.seconds)
        context.close()
    rows = [[str(c.tabs), f"{c.cpu:.3f}", f"{c.sent / 1000:.1f}", f"{c.heap / 1e6:.1f}"] for c in costs]
    print(machine())
    print(table(["tabs", "cores of its process", "kB/s sent", "MB of a page's heap"], rows))
    cpu, sent = (costs[-1].cpu - costs[0].cpu) / args.tabs, costs[-1].sent / args.tabs
    print(f"for each tab {cpu:.3f} core (goal {CPU_GOAL}), {sent / 1000:.1f} kB/s (goal {BYTES_GOAL / 1000:g})")
    return 0 if cpu <= CPU_GOAL and sent <= BYTES_GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
