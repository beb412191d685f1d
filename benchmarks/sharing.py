"""What sharing costs the fastest trainer: one epoch alone, and one with four slower trainers that spill.

python benchmarks/sharing.py [--runs 3] [--seconds 220]

The pipeline is bound by its producer, which sleeps. Both forms are run in turn, as often as fits into the seconds. The
slower trainers are 2, 5, 10 and 20 times as slow as the fastest and join at 0, 30, 60 and 95 % of the epoch. At the end
stands for each limit whether it holds; the command fails if one does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import dsnb
from dsnb.notebook.service import DataService

ELEMENTS = 1000
PRODUCE_S = 0.005
WINDOW_BYTES = 1 << 20
ELEMENT_BYTES = 10_000
DISK_BYTES = ELEMENTS * ELEMENT_BYTES
"""What a worker may have on disk: never more than there is in an epoch, which is below its limit of 10 GiB."""
MAX_SLOWDOWN = 0.05
"""By how much of its time alone the fastest trainer may be slowed."""
SLOWER_TRAINERS = ((0.0, 2), (0.3, 5), (0.6, 10), (0.95, 20))


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """One epoch: the fastest trainer's seconds, who saw everything, and the most that was on disk and in memory."""

    seconds: float
    complete_trainers: int
    disk: int
    memory: int


def dataset() -> dsnb.Dataset:
    def produce(x: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        time.sleep(PRODUCE_S)
        return np.full(ELEMENT_BYTES, x % 251, np.uint8)

    return dsnb.Dataset.range(ELEMENTS).map(produce)


def epoch(service: DataService, trainer: str, pause: float, on_element: Callable[[int], None]) -> None:
    cache = dsnb.CrossTrainerCache(trainer, on_lag="spill")
    shared = dsnb.distribute("distributed_epoch", service, job_name="epoch", cross_trainer_cache=cache)
    for number, _ in enumerate(dataset().apply(shared)):
        on_element(number)
        time.sleep(pause)


def measure(others: tuple[tuple[float, int], ...]) -> EpochResult:
    """Run one epoch with these trainers beside the fastest one."""
    with dsnb.start(workers=2, isolation="process", cross_trainer_cache_size_bytes=WINDOW_BYTES) as service:
        counts = dict.fromkeys(["fastest", *(f"{slower}x" for _, slower in others)], 0)
        threads = [
            (at, threading.Thread(target=epoch, args=(service, name, pause(slower), counter(counts, name))))
            for (at, slower), name in zip(others, list(counts)[1:], strict=True)
        ]
        most = {"disk": 0, "memory": 0}
        stop = threading.Event()
        watcher = threading.Thread(target=watch, args=(service, most, stop))
        watcher.start()

        def on_element(number: int) -> None:
            counts["fastest"] = number + 1
            for at, thread in threads:
                if thread.ident is None and number >= at * ELEMENTS:
                    thread.start()

        began = time.perf_counter()
        epoch(service, "fastest", 0.0, on_element)
        seconds = time.perf_counter() - began
        for _, thread in threads:
            thread.join()
        stop.set()
        watcher.join()
    return EpochResult(seconds=seconds, complete_trainers=sum(n == ELEMENTS for n in counts.values()), **most)


def pause(slower: int) -> float:
    """What makes a trainer so many times as slow as two workers produce."""
    return PRODUCE_S / 2 * slower


def counter(counts: dict[str, int], name: str) -> Callable[[int], None]:
    return lambda number: counts.update({name: number + 1})


def watch(service: DataService, most: dict[str, int], stop: threading.Event) -> None:
    """Note the most bytes that the tasks of one worker had on disk and in memory."""
    while not stop.wait(0.5):
        for job in service.status().jobs:
            for task in job.tasks:
                most["disk"] = max(most["disk"], task.spill_bytes)
                most["memory"] = max(most["memory"], task.window_bytes)


def check_limits(alone: list[EpochResult], shared: list[EpochResult]) -> dict[str, bool]:
    """What has to hold, and whether it does."""
    slowed = statistics.median(run.seconds for run in shared) / statistics.median(run.seconds for run in alone) - 1
    trainers = len(SLOWER_TRAINERS) + 1
    memory, disk = max(run.memory for run in shared), max(run.disk for run in shared)
    return {
        f"the fastest is slowed by {100 * slowed:.1f} %, allowed are {100 * MAX_SLOWDOWN:.0f} %": slowed < MAX_SLOWDOWN,
        f"all {trainers} trainers saw everything": all(run.complete_trainers == trainers for run in shared),
        f"{memory / 1e6:.2f} MB in memory of {WINDOW_BYTES / 1e6:.2f} MB": memory <= WINDOW_BYTES,
        f"{disk / 1e6:.2f} MB on disk of {DISK_BYTES / 1e6:.2f} MB": disk <= DISK_BYTES,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=220.0, help="begin no further run that would end later")
    given = parser.parse_args()
    alone: list[EpochResult] = []
    shared: list[EpochResult] = []
    began, took = time.monotonic(), 0.0
    for _ in range(given.runs):
        start = time.monotonic()
        if alone and start - began + took > given.seconds:
            break
        alone.append(measure(()))
        shared.append(measure(SLOWER_TRAINERS))
        took = time.monotonic() - start
    for name, measured in (("alone", alone), ("with four slower ones", shared)):
        seconds = [run.seconds for run in measured]
        print(
            f"{name:22} {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}); "
            f"saw everything: {min(run.complete_trainers for run in measured)} trainers; "
            f"most on one worker: {max(run.memory for run in measured) / 1e6:.1f} MB in memory, "
            f"{max(run.disk for run in measured) / 1e6:.1f} MB on disk"
        )
    found = check_limits(alone, shared)
    for text, holds in found.items():
        print(f"{'holds ' if holds else 'MISSED'} {text}")
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
