"""The training cache: an insert among 10 and among 10,000 entries, and a hit of the decorator on a small result.

The two caches take turns, insert by insert, so that what else the machine does touches both alike; medians are printed.

    python benchmarks/training_cache.py [--inserts 300] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dsnb

FEW, MANY = 10, 10_000


class Output:
    """A small output that writes one file."""

    def __init__(self, value: int) -> None:
        self.value = value

    def to_cache(self, directory: Path, model_storage: dsnb.cache.ModelStorage) -> None:
        (directory / "value").write_text(str(self.value))

    @classmethod
    def from_cache(cls, _node_name: str, directory: Path, *_: Any) -> Any:
        return cls(int((directory / "value").read_text()))


def make_filled_cache(folder: Path, entries: int) -> dsnb.cache.LocalTrainingCache:
    """A cache with so many results, each in a folder of its own."""
    cache = dsnb.cache.LocalTrainingCache(folder, max_size=1000)
    for number in range(entries):
        insert(cache, number)
    return cache


def insert(cache: dsnb.cache.LocalTrainingCache, number: int) -> None:
    cache.cache_output(f"key {number}", Output(number), f"output {number}", dsnb.cache.ModelStorage("unused"))


def inserts(folder: Path, count: int) -> dict[str, float]:
    """Seconds for an insert into each cache; the one with few entries keeps few."""
    few, many = make_filled_cache(folder / "few", FEW), make_filled_cache(folder / "many", MANY)
    times: dict[str, list[float]] = {"few": [], "many": []}
    for number in range(count):
        for name, cache in (("few", few), ("many", many)):
            began = time.perf_counter()
            insert(cache, MANY + number)
            times[name].append(time.perf_counter() - began)
        assert few.store is not None
        few.store.drop([f"key {MANY + number}"])
    few.close()
    many.close()
    return {name: statistics.median(found) for name, found in times.items()}


SCALE = np.linspace(0, 1, 100)


def scaled(value: float) -> np.ndarray[Any, Any]:
    return SCALE * value


def hit(folder: Path, count: int) -> float:
    """Seconds for a call whose small result is there, fingerprint included."""
    with dsnb.cache.LocalTrainingCache(folder / "hits") as cache:

        @dsnb.cache.remembered(cache=cache)
        def small(value: float) -> dict[str, Any]:
            return {"weights": scaled(value), "loss": value}

        small(0.5)
        times = []
        for _ in range(count):
            began = time.perf_counter()
            small(0.5)
            times.append(time.perf_counter() - began)
        assert small.explain().hit
    return statistics.median(times)


def measure(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as name:
        found = inserts(Path(name), count)
        return {
            f"an insert among {FEW} entries, ms": found["few"] * 1e3,
            f"an insert among {MANY} entries, ms": found["many"] * 1e3,
            "ratio": found["many"] / found["few"],
            "a hit of the decorator on a small result, ms": hit(Path(name), count) * 1e3,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inserts", type=int, default=300, help="how many inserts and hits are timed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    found = measure(arguments.inserts)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"Python {platform.python_version()}, medians of {arguments.inserts}")
    for name, value in found.items():
        print(f"{name:<48} {value:8.2f}")


if __name__ == "__main__":
    main()
