"""Several hosts as network namespaces of this machine: a limited link, the cost of TLS, and many workers that wait.

    python -m benchmarks.hosts [--seconds 8] [--runs 3] [--write]

Needs root, iproute2 and iperf3. Dispatcher, workers and readers run on hosts of their own (`tests/support/hosts.py`);
all of them share the processors of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.sections import machine, table, write_section
from tests.support.hosts import Network, network
from tests.support.processes import PythonProcess

LINK_MEGABITS = 1000
ONE_WAY_S = 0.0025
"""The delay of each packet: a round trip takes 5 ms."""
SECONDS_PER_CALL = 0.02
WORKERS = (1, 2, 4, 8, 16)
_WORKER_HOSTS = ("b", "c", "d", "e")

BATCHES = """
import numpy as np
batch = np.random.default_rng(0).integers(0, 256, (32, 224, 224, 3), np.uint8)
data = dsnb.Dataset.from_tensors(batch).repeat()
"""
NUMBERS = "data = dsnb.Dataset.range(64).repeat()\n"
WAITING = f"""
import time
data = dsnb.Dataset.range(1_000_000).map(lambda x: (time.sleep({SECONDS_PER_CALL}), x)[1], num_parallel_calls=1)
"""
READER = """
import json, sys, time
import dsnb
svc = dsnb.connect(sys.argv[1])
{data}
elements = iter(data.apply(dsnb.distribute("{mode}", svc, compression=None)))
begin = time.monotonic() + {warm_up}
while time.monotonic() < begin:
    last = next(elements)
began, count = time.monotonic(), 0
end = began + {seconds}
while time.monotonic() < end:
    last = next(elements)
    count += 1
took = time.monotonic() - began
print("RATE", json.dumps([count / took, getattr(last, "nbytes", 8) * count / took]), flush=True)
"""


@contextmanager
def service(hosts: Network, folder: Path, workers: int, *, tls: bool) -> Iterator[Path]:
    """A service with its dispatcher on host "a" and its workers on the others, in turn; yields the join file."""
    join_file = folder / f"{time.monotonic_ns()}.join"
    command = ["-m", "dsnb", "dispatcher", "--host", "auto", "--join-file", str(join_file)]
    with ExitStack() as stack:
        dispatcher = stack.enter_context(hosts["a"].python(command if tls else [*command, "--no-tls"]))
        dispatcher.wait_for_line("dispatcher ready", timeout=60)
        started: list[PythonProcess] = []
        for number in range(workers):
            host = hosts[_WORKER_HOSTS[number % len(_WORKER_HOSTS)]]
            started.append(stack.enter_context(host.python(["-m", "dsnb", "worker", "--join", str(join_file)])))
        for worker in started:
            worker.wait_for_line("worker ready", timeout=120)
        yield join_file


def rate(
    hosts: Network, join_file: Path, data: str, mode: str, *, seconds: float, warm_up: float
) -> tuple[float, float]:
    """Elements and bytes in a second, of one reader on host "a"."""
    code = READER.format(data=data, mode=mode, seconds=seconds, warm_up=warm_up)
    with hosts["a"].python(["-c", code, str(join_file)]) as reader:
        elements, nbytes = json.loads(reader.wait_for_line("RATE", timeout=seconds + warm_up + 120).partition(" ")[2])
    return elements, nbytes


def iperf_rate(hosts: Network, seconds: float) -> float:
    """Bytes in a second that iperf3 sends from host "b" to host "a"."""
    prefix = ["ip", "netns", "exec"]
    with subprocess.Popen([*prefix, hosts["a"].namespace, "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL) as server:
        time.sleep(0.5)
        sender = [*prefix, hosts["b"].namespace, "iperf3", "-J", "-t", str(int(seconds)), "-O", "2", "-c"]
        sent = subprocess.run([*sender, hosts["a"].address], stdout=subprocess.PIPE, check=True, timeout=seconds + 60)
        server.wait(30)
    bits: float = json.loads(sent.stdout)["end"]["sum_received"]["bits_per_second"]
    return bits / 8


def link_rows(hosts: Network, folder: Path, seconds: float, runs: int) -> list[list[str]]:
    """4.8 MB batches over a link of 1 Gbit/s with a round trip of 5 ms, beside iperf3 in the same minute."""
    for host in ("a", "b"):
        hosts[host].limit(LINK_MEGABITS)
    with hosts.delayed("a", ONE_WAY_S):
        rows = []
        for tls in (True, False):
            shares, rates, whole = [], [], []
            with service(hosts, folder, 1, tls=tls) as join_file:
                for _ in range(runs):
                    whole.append(iperf_rate(hosts, seconds))
                    _, nbytes = rate(hosts, join_file, BATCHES, "parallel_epochs", seconds=seconds, warm_up=3.0)
                    rates.append(nbytes)
                    shares.append(nbytes / whole[-1])
            name = "with TLS" if tls else "without"
            rows.append([name, f"{median(rates) / 1e6:.1f}", f"{median(whole) / 1e6:.1f}", f"{median(shares):.2f}"])
    for host in ("a", "b"):
        hosts[host].limit(0)
    return rows


def tls_rows(hosts: Network, folder: Path, seconds: float, runs: int) -> list[list[str]]:
    """Batches and single numbers between two hosts without a limited link, with and without TLS, in turns."""
    found: dict[tuple[str, bool], list[float]] = {}
    with service(hosts, folder, 1, tls=True) as encrypted, service(hosts, folder, 1, tls=False) as plain:
        for _ in range(runs):
            for tls, join_file in ((True, encrypted), (False, plain)):
                _, nbytes = rate(hosts, join_file, BATCHES, "parallel_epochs", seconds=seconds, warm_up=2.0)
                elements, _ = rate(hosts, join_file, NUMBERS, "parallel_epochs", seconds=seconds, warm_up=2.0)
                found.setdefault(("batches", tls), []).append(nbytes / 1e9)
                found.setdefault(("numbers", tls), []).append(elements / 1e6)
    units = {"batches": "4.8 MB batches, GB/s", "numbers": "single numbers, million/s"}
    rows = []
    for kind, title in units.items():
        with_tls, without = median(found[kind, True]), median(found[kind, False])
        rows.append([title, f"{with_tls:.2f}", f"{without:.2f}", f"{with_tls / without:.2f}"])
    return rows


def scaling_rows(hosts: Network, folder: Path, seconds: float, runs: int) -> list[list[str]]:
    """A function that waits 20 ms for each element, on more and more workers."""
    rows, one = [], 0.0
    for workers in WORKERS:
        with service(hosts, folder, workers, tls=True) as join_file:
            measured = [
                rate(hosts, join_file, WAITING, "parallel_epochs", seconds=seconds, warm_up=3.0)[0] for _ in range(runs)
            ]
        one = one or median(measured)
        efficiency = median(measured) / (workers * one)
        rows.append([str(workers), f"{median(measured):.0f}", f"{efficiency:.2f}"])
    return rows


def report(folder: Path, hosts: Network, seconds: float, runs: int) -> str:
    """All tables."""
    load = f"{os.getloadavg()[0]:.1f}"  # before anything was started here
    return "\n\n".join(
        (
            f"{machine()}; medians of {runs} runs of {seconds:g} s; other programs ran too (load average {load}).",
            "A link of 1 Gbit/s with a round trip of 5 ms, 4.8 MB batches, one worker and one reader:",
            table(["connections", "dsnb, MB/s", "iperf3, MB/s", "share"], link_rows(hosts, folder, seconds, runs)),
            "The cost of TLS between two hosts, if processors limit and not the link:",
            table(["what", "with TLS", "without", "ratio"], tls_rows(hosts, folder, seconds, runs)),
            f"A function that waits {1000 * SECONDS_PER_CALL:g} ms for each element, workers on four hosts, TLS:",
            table(["workers", "elements/s", "efficiency"], scaling_rows(hosts, folder, seconds, runs)),
        )
    )


def main() -> int:
    """Measure, print, and write the figures into the documentation if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as shared,
        tempfile.TemporaryDirectory() as own,
        network(Path(own), "a", *_WORKER_HOSTS) as hosts,
    ):
        text = report(Path(shared), hosts, args.seconds, args.runs)
    print(text)
    if args.write:
        write_section("performance.md", "hosts", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
