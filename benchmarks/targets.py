"""What is to be reached: the table of targets, and how each figure follows from what was measured.

A row may have several targets; each is a `Check`. Ratios are those of measurements that were made one after the other;
so what slows the whole machine for a while slows both sides. A target counts as met only if the whole interval of the
median meets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.estimates import Estimate, estimate
from benchmarks.peers.serving import Figures
from benchmarks.workloads import (
    BARE,
    COPY,
    EPOCH_FORMS,
    GRPC,
    LOCAL,
    RAY,
    SAME_HOST,
    SHARED,
    SPDL,
    TCP,
    TF,
    TLS,
    TORCH,
    TRAINER_COUNTS,
    WHOLE,
)

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
        values: What each measurement reached, of all results.
        minimum: At least so much is asked for.
        maximum: At most so much.
        unit: Behind the figure.
        digits: Behind the point.
        about: Which of a row's targets it is.
    """

    values: Callable[[Results], list[float]]
    minimum: float | None = None
    maximum: float | None = None
    unit: str = "x"
    digits: int = 2
    about: str = ""

    def reached(self, results: Results) -> Estimate:
        """The median of what was measured, with its interval.

        Raises:
            MissingError: a contender has no figures.
        """
        return estimate(self.values(results))

    def met(self, reached: Estimate) -> bool:
        """Whether the interval's worse end is what is asked for."""
        return (self.minimum is None or reached.low >= self.minimum) and (
            self.maximum is None or reached.high <= self.maximum
        )


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


def figure(workload: str, contender: str, metric: str) -> Callable[[Results], list[float]]:
    """A figure by itself."""
    return lambda results: figures(results, workload, contender, metric)


def ratio(workload: str, ours: str, theirs: str, metric: str = "per_s") -> Callable[[Results], list[float]]:
    """How many times theirs ours is, measurement by measurement."""
    return _each(lambda a, b: a / b, figure(workload, ours, metric), figure(workload, theirs, metric))


def time_ratio(workload: str, ours: str, theirs: str, metric: str) -> Callable[[Results], list[float]]:
    """The same of times: how many times as long theirs takes."""
    return ratio(workload, theirs, ours, metric)


def own_ratio(workload: str, contender: str, ours: str, theirs: str) -> Callable[[Results], list[float]]:
    """The ratio of two figures of one contender."""
    return _each(lambda a, b: a / b, figure(workload, contender, ours), figure(workload, contender, theirs))


def largest(*values: Callable[[Results], list[float]]) -> Callable[[Results], list[float]]:
    """The largest of some figures, measurement by measurement."""
    return _each(max, *values)


def smallest(*values: Callable[[Results], list[float]]) -> Callable[[Results], list[float]]:
    """The smallest of some figures, measurement by measurement."""
    return _each(min, *values)


def _each(combine: Callable[..., float], *values: Callable[[Results], list[float]]) -> Callable[[Results], list[float]]:
    """Combine the first measurements of several figures, then the second ones, and so on."""
    return lambda results: [combine(*found) for found in zip(*(one(results) for one in values), strict=False)]


ROWS: tuple[Row, ...] = (
    Row(
        workload="int64 scalars with map, grpc, worker process",
        against="tf.data service",
        target="500x",
        checks=(Check(values=ratio("scalars", GRPC, TF), minimum=500, digits=0),),
    ),
    Row(
        workload="the same",
        against="PyTorch DataLoader, 2 workers, unbatched; Ray Data rows",
        target="120x; 6x",
        checks=(
            Check(values=ratio("scalars", GRPC, TORCH), minimum=120, digits=0, about="DataLoader"),
            Check(values=ratio("scalars", GRPC, RAY), minimum=6, digits=1, about="Ray"),
        ),
    ),
    Row(
        workload="28x28 float32 samples with map, grpc",
        against="tf.data service",
        target="40x",
        checks=(Check(values=ratio("samples", GRPC, TF), minimum=40, digits=0),),
    ),
    Row(
        workload="4.8 MB uint8 batches, grpc, no compression",
        against="tf.data service",
        target="1.15x",
        checks=(Check(values=ratio("batches", GRPC, TF), minimum=1.15),),
    ),
    Row(
        workload="4.8 MB uint8 batches between hosts, tcp; with TLS",
        against="dsnb, grpc; tf.data service without TLS",
        target="1.6x, <= 0.5 CPU s/GB; 1.0x",
        checks=(
            Check(values=ratio("batches", TCP, GRPC), minimum=1.6, about="plain"),
            Check(values=figure("batches", TCP, "cpu_s_per_gb"), maximum=0.5, unit=" CPU s/GB", about="plain"),
            Check(values=ratio("batches", TLS, TF), minimum=1.0, about="TLS"),
        ),
    ),
    Row(
        workload="token sequences, padded in batches of 32, grpc",
        against="DataLoader with a collate function",
        target="4x",
        checks=(Check(values=ratio("tokens", GRPC, TORCH), minimum=4, digits=1),),
    ),
    Row(
        workload="19 MB and 64 MB elements, grpc",
        against="whole messages of the same size, in the same run",
        target="1.5x; 2.3x",
        checks=(
            Check(values=ratio("floats", GRPC, WHOLE), minimum=1.5, about="19 MB"),
            Check(values=ratio("large", GRPC, WHOLE), minimum=2.3, about="64 MB"),
        ),
    ),
    Row(
        workload="4.8 MB noisy batches, AUTO, grpc",
        against="tf.data service AUTO",
        target="2.0x",
        checks=(Check(values=ratio("noisy-auto", GRPC, TF), minimum=2.0),),
    ),
    Row(
        workload="4.8 MB smooth batches, AUTO, grpc",
        against="tf.data service AUTO",
        target="1.15x",
        checks=(Check(values=ratio("smooth-auto", GRPC, TF), minimum=1.15),),
    ),
    Row(
        workload="4.8 MB batches, same host, chosen by itself",
        against="tf.data service; DataLoader 2 workers",
        target="7x; 5x",
        checks=(
            Check(values=ratio("batches", SAME_HOST, TF), minimum=7, digits=1, about="tf.data"),
            Check(values=ratio("batches", SAME_HOST, TORCH), minimum=5, digits=1, about="DataLoader"),
        ),
    ),
    Row(
        workload="shared memory at 4.8 MB and above; at 1 MB",
        against="memcpy into the warm ring, the limit",
        target="0.75; 0.6",
        checks=(
            Check(values=ratio("ring-5", SHARED, COPY), minimum=0.75, about="4.8 MB"),
            Check(values=ratio("ring-19", SHARED, COPY), minimum=0.75, about="19 MB"),
            Check(values=ratio("ring-67", SHARED, COPY), minimum=0.75, about="64 MB"),
            Check(values=ratio("ring-1", SHARED, COPY), minimum=0.6, about="1 MB"),
        ),
    ),
    Row(
        workload="an epoch of 10 elements, first to end, again and again",
        against="tf.data service (1.01 s: it learns of the end by heartbeat)",
        target="100x",
        checks=(Check(values=time_ratio("epoch", GRPC, TF, "epoch_ms"), minimum=100, digits=0),),
    ),
    Row(
        workload="local hand-over, sustained",
        against="none",
        target="< 0.5 us an element; 0 copies",
        checks=(
            Check(values=figure("local", LOCAL, "us"), maximum=0.5, unit=" us"),
            Check(values=figure("local", LOCAL, "copies"), maximum=0, unit=" copies", digits=0),
        ),
    ),
    Row(
        workload="beside a trainer that runs pure Python without pause: 1 MB frames and 64 KB frames reaching it over "
        "grpc; over shared memory; rate of a process worker",
        against="alone",
        target=">= 100/s and 600/s; >= 400/s; >= 0.9",
        checks=(
            Check(values=figure("beside-1m", GRPC, "per_s"), minimum=100, unit="/s", digits=0, about="1 MB"),
            Check(values=figure("beside-64k", GRPC, "per_s"), minimum=600, unit="/s", digits=0, about="64 KB"),
            Check(
                values=smallest(figure("beside-1m", SHARED, "per_s"), figure("beside-64k", SHARED, "per_s")),
                minimum=400,
                unit="/s",
                digits=0,
                about="shared memory",
            ),
            Check(values=figure("beside-worker", GRPC, "share"), minimum=0.9, unit="", about="worker"),
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
                Check(
                    values=own_ratio(name, contender, "made_us_16", "made_us_1"), maximum=1.05, about=f"CPU, {about}"
                ),
                Check(
                    values=own_ratio(name, contender, "slowest_16", "per_s_1"), minimum=0.95, about=f"slowest, {about}"
                ),
            )
        ),
    ),
    Row(
        workload="real images, end to end, the same turbo decoder named on both sides (a Pillow row for information)",
        against="tf.data service running its own native pipeline",
        target="1.0x",
        checks=(Check(values=ratio("images", "dsnb, simplejpeg", TF), minimum=1.0),),
    ),
    Row(
        workload="photographs with Pillow and NumPy in Python, two workers, whole epochs: the lowest of processes and "
        "threads, with and without AUTOTUNE; processes with AUTOTUNE; the same; threads with AUTOTUNE",
        against="two bare processes; DataLoader, workers kept; Ray Data; SPDL, threads",
        target="0.97; 1.05x; 1.5x; 1.0x",
        checks=(
            Check(
                values=smallest(*(ratio("photo-epochs", form, BARE, "images_per_s") for form in EPOCH_FORMS)),
                minimum=0.97,
                unit="",
                about="of the limit",
            ),
            *(
                Check(values=ratio("photo-epochs", form, peer, "images_per_s"), minimum=minimum, about=about)
                for form, peer, minimum, about in (
                    ("dsnb, processes, AUTOTUNE", TORCH, 1.05, "DataLoader"),
                    ("dsnb, processes, AUTOTUNE", RAY, 1.5, "Ray"),
                    ("dsnb, threads, AUTOTUNE", SPDL, 1.0, "SPDL"),
                )
            ),
        ),
    ),
    Row(
        workload="the same, from the last batch of an epoch to the first of the next, processes with AUTOTUNE",
        against="DataLoader, workers kept",
        target="half as long",
        checks=(Check(values=time_ratio("photo-epochs", "dsnb, processes, AUTOTUNE", TORCH, "gap_ms"), minimum=2),),
    ),
    Row(
        workload="the same function, 4 and 8 trainers on one job: the slowest",
        against="as many DataLoaders with two workers each: the slowest",
        target="4.5x; 8x",
        checks=tuple(
            Check(
                values=ratio(f"photo-trainers-{count}", SAME_HOST, TORCH, "slowest_per_s"),
                minimum=minimum,
                digits=1,
                about=f"{count} trainers",
            )
            for count, minimum in zip(TRAINER_COUNTS, (4.5, 8), strict=True)
        ),
    ),
    Row(
        workload="import and start to first element, thread workers; process workers",
        against="tf.data service",
        target="7x; 3.5x",
        checks=(
            Check(
                values=time_ratio("start", "dsnb, thread workers", TF, "start_s"), minimum=7, digits=1, about="threads"
            ),
            Check(
                values=time_ratio("start", "dsnb, process workers", TF, "start_s"),
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
                values=largest(*(figure("memory-grpc", GRPC, f"{side}_over_mb") for side in ("worker", "client"))),
                maximum=64,
                unit=" MB above 1.1x",
                digits=0,
                about="grpc",
            ),
            Check(
                values=largest(*(figure("memory-shm", SHARED, f"{side}_over_mb") for side in ("worker", "client"))),
                maximum=0,
                unit=" MB above 1.1x",
                digits=0,
                about="shared memory",
            ),
            Check(
                values=figure("memory-local", LOCAL, "both_over_mb"),
                maximum=0,
                unit=" MB above 1.1x",
                digits=0,
                about="local",
            ),
        ),
    ),
)
