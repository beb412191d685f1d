"""What is to be reached: the table of targets, and how each figure follows from what was measured.

A row may have several targets; each is a `Check`. Ratios are medians of the ratios of measurements that were made one
after the other; so what slows the whole machine for a while slows both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.serving import Figures
from benchmarks.workloads import COPY, GRPC, LOCAL, RAY, SAME_HOST, SHARED, TF, TORCH, WHOLE

Samples = Mapping[str, Sequence[Figures]]
"""The measurements of each contender of a workload."""
Results = Mapping[str, Samples]
"""The measurements of all workloads."""


class MissingError(LookupError):
    """A contender whose figures are asked for has none; `args` are the workload and its name."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One target.

    Args:
        value: What was reached, of all results.
        minimum: At least so much is asked for.
        maximum: At most so much.
        unit: Behind the figure.
        digits: Behind the point.
        about: Which of a row's targets it is.
    """

    value: Callable[[Results], float]
    minimum: float | None = None
    maximum: float | None = None
    unit: str = "x"
    digits: int = 2
    about: str = ""

    def met(self, value: float) -> bool:
        """Whether a value is what is asked for."""
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: as the target was set, and how it is checked."""

    workload: str
    against: str
    target: str
    checks: tuple[Check, ...]


def figures(results: Results, workload: str, contender: str, metric: str) -> list[float]:
    """All measurements of one figure."""
    found = [one[metric] for one in results.get(workload, {}).get(contender, ()) if metric in one]
    if not found:
        raise MissingError(workload, contender)
    return found


def median(workload: str, contender: str, metric: str) -> Callable[[Results], float]:
    """A figure by itself."""
    return lambda results: statistics.median(figures(results, workload, contender, metric))


def ratio(workload: str, ours: str, theirs: str, metric: str = "per_s") -> Callable[[Results], float]:
    """How many times theirs ours is, measurement by measurement."""

    def value(results: Results) -> float:
        pairs = zip(figures(results, workload, ours, metric), figures(results, workload, theirs, metric), strict=False)
        return statistics.median(a / b for a, b in pairs)

    return value


def time_ratio(workload: str, ours: str, theirs: str, metric: str) -> Callable[[Results], float]:
    """The same of times: how many times as long theirs takes."""
    return ratio(workload, theirs, ours, metric)


def own_ratio(workload: str, contender: str, ours: str, theirs: str) -> Callable[[Results], float]:
    """The ratio of two figures of one contender."""

    def value(results: Results) -> float:
        above = figures(results, workload, contender, ours)
        return statistics.median(
            a / b for a, b in zip(above, figures(results, workload, contender, theirs), strict=True)
        )

    return value


def copies_beyond_small(results: Results) -> float:
    """By how many copies of 4 MB a hand-over of 4 MB takes longer than one of 64 bytes."""
    large = median("latency-4m", SHARED, "us")(results) - median("latency-64", SHARED, "us")(results)
    return large / median("latency-4m", COPY, "us")(results)


def largest(*values: Callable[[Results], float]) -> Callable[[Results], float]:
    """The largest of some figures."""
    return lambda results: max(value(results) for value in values)


def smallest(*values: Callable[[Results], float]) -> Callable[[Results], float]:
    """The smallest of some figures."""
    return lambda results: min(value(results) for value in values)


ROWS: tuple[Row, ...] = (
    Row(
        workload="int64 scalars with map, grpc, worker process",
        against="tf.data service",
        target="500x",
        checks=(Check(value=ratio("scalars", GRPC, TF), minimum=500, digits=0),),
    ),
    Row(
        workload="the same",
        against="PyTorch DataLoader, 2 workers, unbatched; Ray Data rows",
        target="120x; 6x",
        checks=(
            Check(value=ratio("scalars", GRPC, TORCH), minimum=120, digits=0, about="DataLoader"),
            Check(value=ratio("scalars", GRPC, RAY), minimum=6, digits=1, about="Ray"),
        ),
    ),
    Row(
        workload="28x28 float32 samples with map, grpc",
        against="tf.data service",
        target="75x",
        checks=(Check(value=ratio("samples", GRPC, TF), minimum=75, digits=0),),
    ),
    Row(
        workload="4.8 MB uint8 batches, grpc, no compression",
        against="tf.data service",
        target="1.2x",
        checks=(Check(value=ratio("batches", GRPC, TF), minimum=1.2),),
    ),
    Row(
        workload="19 MB and 64 MB elements, grpc",
        against="whole messages of the same size, in the same run",
        target="1.5x; 1.8x",
        checks=(
            Check(value=ratio("floats", GRPC, WHOLE), minimum=1.5, about="19 MB"),
            Check(value=ratio("large", GRPC, WHOLE), minimum=1.8, about="64 MB"),
        ),
    ),
    Row(
        workload="4.8 MB noisy batches, AUTO, grpc",
        against="tf.data service AUTO",
        target="2.0x",
        checks=(Check(value=ratio("noisy-auto", GRPC, TF), minimum=2.0),),
    ),
    Row(
        workload="4.8 MB smooth batches, AUTO, grpc",
        against="tf.data service AUTO",
        target="1.15x",
        checks=(Check(value=ratio("smooth-auto", GRPC, TF), minimum=1.15),),
    ),
    Row(
        workload="4.8 MB batches, same host, chosen by itself",
        against="tf.data service; DataLoader 2 workers",
        target="7x; 5x",
        checks=(
            Check(value=ratio("batches", SAME_HOST, TF), minimum=7, digits=1, about="tf.data"),
            Check(value=ratio("batches", SAME_HOST, TORCH), minimum=5, digits=1, about="DataLoader"),
        ),
    ),
    Row(
        workload="shared memory at 4.8 MB and above; at 1 MB",
        against="memcpy into the warm ring, the limit",
        target="0.7; 0.5",
        checks=(
            Check(value=ratio("ring-5", SHARED, COPY), minimum=0.7, about="4.8 MB"),
            Check(value=ratio("ring-19", SHARED, COPY), minimum=0.7, about="19 MB"),
            Check(value=ratio("ring-67", SHARED, COPY), minimum=0.7, about="64 MB"),
            Check(value=ratio("ring-1", SHARED, COPY), minimum=0.5, about="1 MB"),
        ),
    ),
    Row(
        workload="latency over shared memory, median: 64 B idle; 4 MB",
        against="the limit",
        target="<= 60 us; that + 1.5 memcpy",
        checks=(
            Check(value=median("latency-64", SHARED, "us"), maximum=60, unit=" us", digits=0, about="64 B"),
            Check(value=copies_beyond_small, maximum=1.5, unit=" memcpy more", about="4 MB"),
        ),
    ),
    Row(
        workload="an epoch of 10 elements, first to end, again and again",
        against="tf.data service (1.01 s: it learns of the end by heartbeat)",
        target="100x",
        checks=(Check(value=time_ratio("epoch", GRPC, TF, "epoch_ms"), minimum=100, digits=0),),
    ),
    Row(
        workload="local hand-over, sustained; a lone element",
        against="none",
        target="< 0.5 us an element; < 50 us; 0 copies",
        checks=(
            Check(value=median("local", LOCAL, "us"), maximum=0.5, unit=" us", about="sustained"),
            Check(value=median("latency-64", LOCAL, "us"), maximum=50, unit=" us", digits=0, about="a lone one"),
            Check(value=median("local", LOCAL, "copies"), maximum=0, unit=" copies", digits=0),
        ),
    ),
    Row(
        workload="beside a trainer that runs pure Python without pause: 1 MB frames and 64 KB frames reaching it over "
        "grpc; over shared memory; rate of a process worker",
        against="alone",
        target=">= 100/s and 600/s; >= 400/s; >= 0.9",
        checks=(
            Check(value=median("beside-1m", GRPC, "per_s"), minimum=100, unit="/s", digits=0, about="1 MB"),
            Check(value=median("beside-64k", GRPC, "per_s"), minimum=600, unit="/s", digits=0, about="64 KB"),
            Check(
                value=smallest(median("beside-1m", SHARED, "per_s"), median("beside-64k", SHARED, "per_s")),
                minimum=400,
                unit="/s",
                digits=0,
                about="shared memory",
            ),
            Check(value=median("beside-worker", GRPC, "share"), minimum=0.9, unit="", about="worker"),
        ),
    ),
    Row(
        workload="k = 16 trainers sharing, production below 60 MB/s over grpc and below 1 GB/s over shared memory: "
        "preprocessing CPU against k = 1; rate of each against k = 1",
        against="flat",
        target="<= 1.05; >= 0.95",
        checks=tuple(
            check
            for name, contender, about in (("sharing-grpc", GRPC, "grpc"), ("sharing-shm", SHARED, "shared memory"))
            for check in (
                Check(value=own_ratio(name, contender, "made_us_16", "made_us_1"), maximum=1.05, about=f"CPU, {about}"),
                Check(
                    value=own_ratio(name, contender, "slowest_16", "per_s_1"), minimum=0.95, about=f"slowest, {about}"
                ),
            )
        ),
    ),
    Row(
        workload="real images, end to end, the same turbo decoder named on both sides (a Pillow row for information)",
        against="tf.data service running its own native pipeline",
        target="1.0x",
        checks=(Check(value=ratio("images", "dsnb, simplejpeg", TF), minimum=1.0),),
    ),
    Row(
        workload="import and start to first element, thread workers; process workers",
        against="tf.data service",
        target="7x; 3.5x",
        checks=(
            Check(
                value=time_ratio("start", "dsnb, thread workers", TF, "start_s"), minimum=7, digits=1, about="threads"
            ),
            Check(
                value=time_ratio("start", "dsnb, process workers", TF, "start_s"),
                minimum=3.5,
                digits=1,
                about="processes",
            ),
        ),
    ),
    Row(
        workload="memory: high-water mark of client and worker above the pipeline's own",
        against="the budgets set",
        target="1.1x + 64 MB over grpc; 1.1x over shared memory and local",
        checks=(
            Check(
                value=largest(*(median("memory-grpc", GRPC, f"{side}_over_mb") for side in ("worker", "client"))),
                maximum=64,
                unit=" MB above 1.1x",
                digits=0,
                about="grpc",
            ),
            Check(
                value=largest(*(median("memory-shm", SHARED, f"{side}_over_mb") for side in ("worker", "client"))),
                maximum=0,
                unit=" MB above 1.1x",
                digits=0,
                about="shared memory",
            ),
            Check(
                value=median("memory-local", LOCAL, "both_over_mb"),
                maximum=0,
                unit=" MB above 1.1x",
                digits=0,
                about="local",
            ),
        ),
    ),
)
