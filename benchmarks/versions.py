"""Compares two checkouts of dsnb: every workload with both, in turns, and prints how they differ.

    git worktree add ../before 4889d3d
    python -m benchmarks.versions ../before                     all workloads of dsnb (about 30 minutes)
    python -m benchmarks.versions ../before --only scalars start --runs 9

Both run the benchmark code of this checkout in the same environment; only the package `dsnb` differs. A row gives the
median of the ratios of neighbouring measurements, "after" by "before", and the interval that holds the middle half of
them. More is better for rates and less for times, so a row also says which of the two was better.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.environments import ROOT
from benchmarks.peers.serving import Figures
from benchmarks.results import machine
from benchmarks.sections import table
from benchmarks.suite import Plan, measure, select_workloads
from benchmarks.workloads import WORKLOADS, Workload

BEFORE, AFTER = "before", "after"
_OURS = "benchmarks.ours."
_HIGHER_IS_BETTER = ("per_s", "share")
_NOISE = 0.05
"""Differences up to this share are not called better or worse."""


def paired(workload: Workload, before: Path) -> Workload:
    """The workload with each contender of dsnb twice, as `NAME, before` and `NAME, after`; without the peers."""
    contenders = {
        f"{name}, {label}": replace(entry, root=root)
        for name, entry in workload.contenders.items()
        if entry.module.startswith(_OURS)
        for label, root in ((BEFORE, before), (AFTER, ROOT))
    }
    return replace(workload, contenders=contenders)


def rows(workload: Workload, samples: dict[str, list[Figures]]) -> Iterator[list[str]]:
    """A row for each contender and figure that both versions have."""
    names = [name.removesuffix(f", {AFTER}") for name in samples if name.endswith(f", {AFTER}")]
    for name in names:
        pairs = list(zip(samples.get(f"{name}, {BEFORE}", ()), samples[f"{name}, {AFTER}"], strict=False))
        for metric, title in workload.columns.items():
            found = [(old[metric], new[metric]) for old, new in pairs if old.get(metric) and metric in new]
            if found:
                yield [workload.name, name, title, *_compared(metric, found)]


def _compared(metric: str, found: Sequence[tuple[float, float]]) -> list[str]:
    old, new = (statistics.median(values) for values in zip(*found, strict=True))
    ratios = sorted(after / before for before, after in found)
    ratio = statistics.median(ratios)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    better = ratio > 1 if metric.endswith(_HIGHER_IS_BETTER) else ratio < 1
    verdict = "same" if abs(ratio - 1) <= _NOISE or low <= 1 <= high else "better" if better else "WORSE"
    return [f"{old:,.4g}", f"{new:,.4g}", f"{ratio:.3f} ({low:.3f} to {high:.3f})", verdict]


def root_with(package: Path, folder: Path) -> Path:
    """Fill `folder` with the benchmarks of this checkout and the package of another one; return it."""
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks", target_is_directory=True)
    (folder / "dsnb").symlink_to(package.resolve() / "dsnb", target_is_directory=True)
    return folder


def main() -> int:
    """Compare what the arguments say; return how many rows are worse."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # contenders are ended, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads whose names begin so")
    parser.add_argument("--runs", type=int, default=5, help="measurements of each version (default: 5)")
    options = parser.parse_args()
    if not (options.before / "dsnb" / "__init__.py").exists():
        parser.error(f"{options.before} is no checkout of dsnb")
    if not (names := select_workloads(options.only)):
        parser.error(f"no such workload; there are {', '.join(WORKLOADS)}")
    compared: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        before = root_with(options.before, Path(folder))
        for name in names:
            workload = paired(WORKLOADS[name], before)
            measured = measure(workload, Plan(runs=options.runs))
            compared += rows(workload, measured.samples)
            print(f"{name}: {measured.runs} runs each", file=sys.stderr, flush=True)
    print(f"Measured on {machine()}; ratios are after by before.\n")
    print(table(("workload", "contender", "figure", BEFORE, AFTER, "ratio", ""), compared))
    return sum(row[-1] == "WORSE" for row in compared)


if __name__ == "__main__":
    sys.exit(main())
