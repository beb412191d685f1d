"""Shared memory between a worker and a reader of one host, next to copies into a warm ring, which are its limit.

The worker is a process of its own. Each size is read several times, in turn with copies of as many bytes by this
process alone, and the medians are printed with what both processes took of the processors: that figure survives a
machine that does much else. Latency is from the moment at which the worker's function returns an element to the moment
at which `next` does, by the clock that all processes of a host share.

    python benchmarks/shared_memory.py [--runs 5] [--seconds 1.0] [--busy] [--json]
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import dsnb

SIZES = {"64 KB": 65_536, "1 MB": 1 << 20, "4.8 MB": 4_816_896, "19 MB": 19_267_584}
TRANSFERS = ("shared_memory", "grpc")
RING_SLABS = 4
"""Slabs of the ring that the limit is measured with, and sources that are copied from in turn."""
_TICKS = os.sysconf("SC_CLK_TCK")


def batches(nbytes: int) -> dsnb.Dataset:
    """Batches from sources that change, as they are; without end."""
    sources = np.random.default_rng(0).integers(0, 255, (RING_SLABS, nbytes), np.uint8)
    return dsnb.Dataset.from_tensor_slices(sources).repeat()


def cpu_seconds(pid: int) -> float:
    """What a process has taken of the processors."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def read_for(elements: Iterator[Any], seconds: float) -> tuple[float, int]:
    """Seconds and elements of a stretch of reading; the elements are looked at and dropped."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(8):
            next(elements)
        count += 8
    return time.perf_counter() - began, count


def copy_for(nbytes: int, seconds: float) -> float:
    """Bytes a second that this process copies into a ring of shared memory whose pages are there."""
    sources = np.random.default_rng(0).integers(0, 255, (RING_SLABS, nbytes), np.uint8)
    ring = np.frombuffer(mmap.mmap(-1, RING_SLABS * nbytes), np.uint8).reshape(RING_SLABS, nbytes)
    ring[:] = 1
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for slab in range(RING_SLABS):
            ring[slab] = sources[slab]
        count += RING_SLABS
    return count * nbytes / (time.perf_counter() - began)


def throughput(service: dsnb.DataService, runs: int, seconds: float) -> dict[str, dict[str, float]]:
    """For each size: GB/s of each way and of the limit, processor seconds for each GB, and the share of the limit."""
    worker = service.status().workers[0].pid
    rows: dict[str, dict[str, float]] = {}
    for name, nbytes in SIZES.items():
        found: dict[str, list[float]] = {}
        readers = {transfer: reader(service, batches(nbytes), transfer) for transfer in TRANSFERS}
        for elements in readers.values():
            read_for(elements, seconds / 2)
        for _ in range(runs):
            limit = copy_for(nbytes, seconds / 2)
            found.setdefault("limit", []).append(limit / 1e9)
            for way, elements in readers.items():
                before = cpu_seconds(worker), time.process_time()
                took, count = read_for(elements, seconds)
                gigabytes = count * nbytes / 1e9
                spent = cpu_seconds(worker) - before[0] + time.process_time() - before[1]
                found.setdefault(way, []).append(gigabytes / took)
                found.setdefault(f"{way}_cpu_s_per_gb", []).append(spent / gigabytes)
                found.setdefault(f"{way}_of_limit", []).append(gigabytes / took / limit * 1e9)
        for elements in readers.values():
            elements.close()
        rows[name] = {key: statistics.median(values) for key, values in found.items()}
    return rows


def reader(service: dsnb.DataService, dataset: dsnb.Dataset, transfer: str) -> Any:
    """An iterator that reads by that way."""
    return iter(dataset.apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol=transfer)))


def stamped(nbytes: int, pause_s: float) -> dsnb.Dataset:
    """Elements that begin with the time at which they were made, so many seconds apart."""

    def make(_: int) -> np.ndarray:
        element = np.zeros(nbytes // 8, np.int64)
        time.sleep(pause_s)
        element[0] = time.monotonic_ns()
        return element

    return dsnb.Dataset.range(1 << 40).map(make)


def latency(service: dsnb.DataService, count: int) -> dict[str, dict[str, float]]:
    """Median and 99th percentile in microseconds, of small and of large elements, by each way."""
    rows: dict[str, dict[str, float]] = {}
    for name, nbytes in (("64 B", 64), ("4 MB", 4 << 20)):
        for transfer in TRANSFERS:
            elements = reader(service, stamped(nbytes, 0.002), transfer)
            found = []
            for _ in range(count):
                element = next(elements)
                found.append((time.monotonic_ns() - int(element[0])) / 1000)
            elements.close()
            found = sorted(found[count // 10 :])
            rows[f"{name}, {transfer}"] = {"p50_us": found[len(found) // 2], "p99_us": found[int(len(found) * 0.99)]}
    source, target = np.ones(4 << 20, np.uint8), np.ones(4 << 20, np.uint8)
    rows["a copy of 4 MB"] = {"p50_us": 1e6 * statistics.median(timed(lambda: np.copyto(target, source), 50))}
    return rows


def timed(call: Callable[[], Any], times: int) -> list[float]:
    """How long a call takes, again and again."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread of this process that runs Python without pause, as a training loop may."""
    over = threading.Event()

    def run() -> None:
        number = 0
        while not over.is_set():
            number += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def alongside_busy_trainer(service: dsnb.DataService, seconds: float) -> dict[str, dict[str, float]]:
    """Frames a second that reach a reader beside a trainer that runs pure Python without pause."""
    rows: dict[str, dict[str, float]] = {}
    for name in ("64 KB", "1 MB"):
        for transfer in TRANSFERS:
            elements = reader(service, batches(SIZES[name]), transfer)
            read_for(elements, seconds / 2)
            with busy_thread():
                took, count = read_for(elements, seconds)
            elements.close()
            rows[f"{name}, {transfer}"] = {"frames_per_s": count / took}
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="stretches of reading that count (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="the length of a stretch (default: 1.0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with dsnb.start(workers=1, isolation="process", name=f"benchmark-{os.getpid()}") as service:
        found = {
            "throughput": throughput(service, options.runs, options.seconds),
            "latency": latency(service, 300),
            "beside a busy trainer": alongside_busy_trainer(service, options.seconds),
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for title, rows in found.items():
        print(title)
        for name, row in rows.items():
            print(f"  {name:24}" + "  ".join(f"{key} {value:,.2f}" for key, value in row.items()))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
