"""A first look at speed: three workloads through gRPC, and how long a short epoch takes.

Dispatcher and worker run in processes of their own (`dsnb dispatcher`, `dsnb worker`), as on another machine. Each
workload is run several times, interleaved with the others, and the medians are printed.

    python -m benchmarks.first_look [--runs 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

import dsnb
from benchmarks.sections import machine, table, write_section
from benchmarks.servers import service


def scalars() -> tuple[dsnb.Dataset, int, int]:
    """A million int64 scalars through a Python function."""
    return dsnb.Dataset.range(2_000_000).map(lambda x: x * x), 2_000_000, 8


def samples() -> tuple[dsnb.Dataset, int, int]:
    """28x28 float32 samples through a NumPy function, one by one."""
    images = np.random.default_rng(0).random((5_000, 28, 28), np.float32)
    return dsnb.Dataset.from_tensor_slices(images).repeat(20).map(lambda x: x * 2 + 1), 100_000, images[0].nbytes


def batches() -> tuple[dsnb.Dataset, int, int]:
    """4.8 MB batches of images, as they are; from a source larger than any cache."""
    images = np.random.default_rng(0).integers(0, 255, (40, 32, 224, 224, 3), np.uint8)
    return dsnb.Dataset.from_tensor_slices(images).repeat(10), 400, images[0].nbytes


WORKLOADS: dict[str, Callable[[], tuple[dsnb.Dataset, int, int]]] = {
    "int64 scalars with a map": scalars,
    "28x28 float32 samples with a map": samples,
    "4.8 MB uint8 batches": batches,
}


def seconds_of(dataset: dsnb.Dataset, expected: int) -> float:
    """How long one pass takes, from `iter` to its end."""
    began = time.perf_counter()
    count = sum(1 for _ in dataset)
    took = time.perf_counter() - began
    if count != expected:
        raise RuntimeError(f"{count} elements came instead of {expected}")
    return took


def measure(target: str, runs: int) -> dict[str, dict[str, float]]:
    """Medians over `runs` passes of each workload, after one pass that is not counted."""
    made = {name: make() for name, make in WORKLOADS.items()}
    read = {
        name: dataset.apply(dsnb.distribute("parallel_epochs", target, data_transfer_protocol="grpc"))
        for name, (dataset, _, _) in made.items()
    }
    short = dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", target, data_transfer_protocol="grpc"))
    times: dict[str, list[float]] = {name: [] for name in made}
    epochs = []
    for run in range(runs + 1):
        for name, (_, count, _) in made.items():
            took = seconds_of(read[name], count)
            if run:
                times[name].append(took)
        epochs += [seconds_of(short, 10) for _ in range(5)][: 5 if run else 0]
    rows = {}
    for name, (_, count, nbytes) in made.items():
        rates = sorted(count / took for took in times[name])
        rows[name] = {
            "elements_per_s": statistics.median(rates),
            "slowest": rates[0],
            "fastest": rates[-1],
            "mb_per_s": statistics.median(rates) * nbytes / 1e6,
        }
    rows["an epoch of ten elements"] = {"ms": 1000 * statistics.median(epochs), "slowest_ms": 1000 * max(epochs)}
    return rows


def report(rows: dict[str, dict[str, float]], runs: int) -> str:
    """A table; a row has rates, or the milliseconds of something short."""
    cells = []
    for name, row in rows.items():
        if "ms" in row:
            cells.append([name, f"{row['ms']:.1f} ms", "", f"slowest {row['slowest_ms']:.1f} ms"])
            continue
        spread = f"{row['slowest']:,.0f} to {row['fastest']:,.0f}"
        cells.append([name, f"{row['elements_per_s']:,.0f}", f"{row['mb_per_s']:,.0f}", spread])
    return (
        f"Measured with `python -m benchmarks.first_look --runs {runs}` on {machine()}. Dispatcher and worker are "
        f"processes of their own, everything goes through gRPC on loopback; medians with the slowest and fastest pass."
        f"\n\n{table(('', 'elements/s', 'MB/s', 'slowest to fastest'), cells)}"
    )


def main() -> None:
    """Run all workloads, print what came out, and write it into the documentation if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="passes of each workload that count (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/first_look.md")
    options = parser.parse_args()
    with service() as target:
        rows = measure(target, options.runs)
    text = report(rows, options.runs)
    print(json.dumps(rows, indent=2) if options.json else text)
    if options.write:
        write_section("first_look.md", "first_look", text)


if __name__ == "__main__":
    main()
