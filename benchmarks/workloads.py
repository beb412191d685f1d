"""The workloads, and who takes part in each.

A workload is a list of contenders that measure the same thing and take turns. What each of them does with its task is
in `ours/` and `peers/`; what must come out is in `targets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.peers.epochs import IMAGES as EPOCH_IMAGES
from benchmarks.peers.serving import Task

NO_PEER = "no peer does this"


@dataclass(frozen=True, kw_only=True)
class ContenderSpec:
    """A contender of a workload.

    Args:
        environment: Where it runs; see `environments.py`.
        module: What it runs.
        task: What it is told to do.
        root: The folder whose `dsnb` it imports.
    """

    environment: str
    module: str
    task: Task
    root: Path = ROOT


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is measured side by side.

    Args:
        name: For the command line and the file of results.
        title: For the page.
        contenders: The contenders by their names.
        columns: The figures to show, and their headings.
        absent: Peers that cannot do this, and why.
        runs: Most measurements of each contender; long ones are made less often.
        deadline_s: How long preparing and each measurement may take.
    """

    name: str
    title: str
    contenders: dict[str, ContenderSpec]
    columns: dict[str, str]
    absent: dict[str, str] = field(default_factory=dict)
    runs: int = 99
    deadline_s: float = 120.0


RATES = {"per_s": "elements/s", "gb_per_s": "GB/s", "cpu_s_per_gb": "CPU s/GB"}
BATCH = (32, 224, 224, 3)
"""4.8 MB of uint8, 19 MB of float32."""
LARGE = (64, 1024, 1024)
"""67 MB of uint8."""
GRPC, SHARED, SAME_HOST, LOCAL = "dsnb, grpc", "dsnb, shared memory", "dsnb, same host", "dsnb, local"
TCP, TLS = "dsnb, tcp", "dsnb, tcp with TLS"
TF, TORCH, RAY, GRAIN, SOCKET = "tf.data service", "DataLoader", "Ray Data", "Grain", "TensorSocket"
SPDL, BARE = "SPDL, threads", "two bare processes"
EPOCH_FORMS: dict[str, dict[str, Any]] = {
    "dsnb, processes": {"isolation": "process"},
    "dsnb, processes, AUTOTUNE": {"isolation": "process", "autotune": True},
    "dsnb, threads": {"isolation": "thread"},
    "dsnb, threads, AUTOTUNE": {"isolation": "thread", "autotune": True},
}
"""How a user may run a function over photographs: by what workers, and with how many threads."""
TRAINER_COUNTS = (4, 8)
_TRANSFERS = {GRPC: "grpc", TCP: "tcp", TLS: "tcp", SHARED: "shared_memory", SAME_HOST: None, LOCAL: "local"}
_PEERS = {TF: "tensorflow", TORCH: "torch", RAY: "ray", GRAIN: "grain", SOCKET: "tensorsocket"}


def ours(task: Task, *names: str, module: str = "rate") -> dict[str, ContenderSpec]:
    """dsnb over these transfers."""
    made = f"benchmarks.ours.{module}"

    def told(name: str) -> Task:
        options = {**task.options, "tls": True} if name == TLS else task.options
        return replace(task, transfer=_TRANSFERS[name], options=options)

    return {name: ContenderSpec(environment="dsnb", module=made, task=told(name)) for name in names}


def peers(task: Task, *names: str) -> dict[str, ContenderSpec]:
    """These peers."""
    return {
        name: ContenderSpec(environment=_PEERS[name], module=f"benchmarks.peers.{_PEERS[name]}", task=task)
        for name in names
    }


def limit(name: str, task: Task) -> dict[str, ContenderSpec]:
    """What a transfer is held against."""
    return {name: ContenderSpec(environment="dsnb", module="benchmarks.peers.limits", task=task)}


COPY, WHOLE = "memcpy into the warm ring", "whole messages"


def _streams() -> list[Workload]:
    """Elements a second."""
    scalars, samples, tokens = Task(data="scalars"), Task(data="samples"), Task(data="tokens")
    batches = Task(shape=BATCH)
    return [
        Workload(
            name="scalars",
            title="int64 scalars, one by one, with a map",
            contenders=ours(scalars, GRPC, SAME_HOST) | peers(scalars, TF, TORCH, RAY, GRAIN),
            columns=RATES,
            absent={SOCKET: "shares batches of a DataLoader, not single elements"},
        ),
        Workload(
            name="samples",
            title="28x28 float32 samples, one by one, with a map",
            contenders=ours(samples, GRPC, TCP, SAME_HOST) | peers(samples, TF, TORCH, RAY, GRAIN),
            columns=RATES,
            absent={SOCKET: "shares batches of a DataLoader, not single elements"},
        ),
        Workload(
            name="batches",
            title="4.8 MB batches of uint8 noise, no compression",
            contenders=ours(batches, GRPC, TCP, TLS, SAME_HOST) | peers(batches, TF, TORCH, GRAIN, SOCKET),
            columns=RATES,
            absent={RAY: "has blocks of rows in its object store: measured by rows"},
        ),
        Workload(
            name="tokens",
            title="token sequences of 16 to 512, padded in batches of 32",
            contenders=ours(tokens, GRPC, SAME_HOST) | peers(tokens, TF, TORCH, GRAIN),
            columns=RATES,
            absent={RAY: "has no padded batches of its own"},
        ),
    ]


def _large() -> list[Workload]:
    """Elements that are larger than a message ought to be, and the limit of shared memory."""
    floats, large = Task(shape=BATCH, dtype="float32"), Task(shape=LARGE)

    def whole(task: Task) -> dict[str, ContenderSpec]:
        return limit(WHOLE, replace(task, kind="whole"))

    def ring(name: str, title: str, task: Task) -> Workload:
        return Workload(
            name=name,
            title=title,
            contenders=ours(task, SHARED) | limit(COPY, task),
            columns=RATES,
            absent={"*": NO_PEER},
        )

    return [
        Workload(
            name="floats",
            title="19 MB batches of float32 noise, no compression",
            contenders=ours(floats, GRPC, TCP, TLS, SAME_HOST) | whole(floats) | peers(floats, TF, TORCH),
            columns=RATES,
        ),
        Workload(
            name="large",
            title="67 MB elements, no compression",
            contenders=ours(large, GRPC, TCP, TLS, SAME_HOST) | whole(large),
            columns=RATES,
            absent={"*": "not asked for: the row is about parts against whole messages"},
        ),
        ring("ring-1", "shared memory: 1 MB elements", Task(shape=(1 << 20,))),
        ring("ring-5", "shared memory: 4.8 MB elements", Task(shape=BATCH)),
        ring("ring-19", "shared memory: 19 MB elements", floats),
        ring("ring-67", "shared memory: 67 MB elements", large),
    ]


def _compressed() -> list[Workload]:
    """What AUTO does with data that compress, and with data that do not."""
    noisy = Task(shape=BATCH, compression="AUTO")
    absent = {"*": "moves data in one host's memory and compresses nothing"}
    return [
        Workload(
            name="noisy-auto",
            title="4.8 MB batches of noise, compression AUTO",
            contenders=ours(noisy, GRPC) | peers(noisy, TF),
            columns=RATES,
            absent=absent,
        ),
        Workload(
            name="smooth-auto",
            title="4.8 MB batches of gradients, compression AUTO",
            contenders=ours(replace(noisy, smooth=True), GRPC) | peers(replace(noisy, smooth=True), TF),
            columns=RATES,
            absent=absent,
        ),
        Workload(
            name="smooth",
            title="4.8 MB batches of gradients, no compression",
            contenders=ours(replace(noisy, smooth=True, compression=None), GRPC)
            | peers(replace(noisy, smooth=True, compression=None), TF),
            columns=RATES,
            absent=absent,
        ),
    ]


def _images() -> Workload:
    def decoded_by(decoder: str) -> Task:
        return Task(data="images", compression="AUTO", options={"decoder": decoder, "photos": True})

    turbo, pillow = decoded_by("simplejpeg"), decoded_by("pillow")
    torch = replace(turbo, options={**turbo.options, "to_torch": True})
    entries = {
        "dsnb, simplejpeg": ours(turbo, SAME_HOST)[SAME_HOST],
        "dsnb, simplejpeg, to_torch": replace(ours(torch, SAME_HOST)[SAME_HOST], environment="torch"),
        "dsnb, Pillow": ours(pillow, SAME_HOST)[SAME_HOST],
        TF: peers(turbo, TF)[TF],
        "DataLoader, simplejpeg": peers(turbo, TORCH)[TORCH],
        "DataLoader, Pillow": peers(pillow, TORCH)[TORCH],
    }
    return Workload(
        name="images",
        title="JPEG photographs of 500x375: read, decode, crop, resize to 224x224, mirror, batches of 32",
        contenders=entries,
        columns=RATES,
        absent={"*": "has no decoder of its own"},
        deadline_s=180.0,
    )


def _photo_epochs() -> Workload:
    task = Task(kind="epochs", data="images", options={"decoder": "pillow and numpy", "photos": True})

    def peer(environment: str, kind: str) -> ContenderSpec:
        return ContenderSpec(environment=environment, module="benchmarks.peers.epochs", task=replace(task, kind=kind))

    forms = {
        name: ContenderSpec(
            environment="dsnb", module="benchmarks.ours.epochs", task=replace(task, options=task.options | form)
        )
        for name, form in EPOCH_FORMS.items()
    }
    others = {
        BARE: peer("dsnb", "limit"),
        TORCH: peer("torch", "torch"),
        RAY: peer("ray", "ray"),
        SPDL: peer("spdl", "spdl"),
    }
    return Workload(
        name="photo-epochs",
        title=f"photographs with Pillow and NumPy, two workers, whole epochs of {EPOCH_IMAGES:,}",
        contenders=forms | others,
        columns={"images_per_s": "images/s", "gap_ms": "ms from one epoch to the next"},
        absent={"*": "not measured with this function"},
        deadline_s=180.0,
    )


def _photo_trainers() -> list[Workload]:
    def trainers(count: int) -> Workload:
        options = {"decoder": "pillow and numpy", "photos": True, "k": count}
        task = Task(kind="trainers", data="images", seconds=3.0, options=options)
        return Workload(
            name=f"photo-trainers-{count}",
            title=f"the same photographs, {count} trainers at once: one pass, or a loader for each",
            contenders={
                SAME_HOST: ContenderSpec(environment="dsnb", module="benchmarks.ours.trainers", task=task),
                TORCH: ContenderSpec(
                    environment="torch", module="benchmarks.ours.trainers", task=replace(task, kind="loaders")
                ),
            },
            columns={"slowest_per_s": "batches/s of the slowest"},
            absent={"*": "not measured with this function"},
            deadline_s=180.0,
        )

    return [trainers(count) for count in TRAINER_COUNTS]


def _latencies() -> list[Workload]:
    small = Task(kind="latency", shape=(64,), options={"pause_s": 0.002})
    four = Task(kind="latency", shape=(4 << 20,), options={"pause_s": 0.008, "count": 150})
    us = {"us": "median us"}
    return [
        Workload(
            name="latency-64",
            title="one element of 64 bytes, 2 ms after the last one: from its function to the reader",
            contenders=ours(small, SHARED, GRPC, LOCAL, module="latency"),
            columns=us,
            absent={"*": NO_PEER},
        ),
        Workload(
            name="latency-4m",
            title="one element of 4 MB, 8 ms after the last one: from its function to the reader",
            contenders=ours(four, SHARED, GRPC, LOCAL, module="latency") | limit(COPY, replace(four, kind="copy")),
            columns=us,
            absent={"*": NO_PEER},
        ),
        Workload(
            name="local",
            title="hand-over in one process: time of an element, arrays that were copied of 20",
            contenders=ours(Task(kind="local"), LOCAL, module="local"),
            columns={"us": "us an element", "copies": "copies"},
            absent={"*": NO_PEER},
        ),
        Workload(
            name="epoch",
            title="an epoch of 10 elements, again and again",
            contenders=ours(Task(kind="epoch", options={"epochs": 50}), GRPC, SAME_HOST)
            | peers(Task(kind="epoch", options={"epochs": 2}), TF),
            columns={"epoch_ms": "ms"},
            absent={"*": "has no service that hands out epochs"},
        ),
    ]


def _busy_trainer_workloads() -> list[Workload]:
    def frames(name: str, title: str, side: int, *transfers: str) -> Workload:
        task = Task(kind="beside frames", shape=(side, side), seconds=2.0)
        return Workload(
            name=name,
            title=f"beside a trainer in pure Python: {title} elements that reach it",
            contenders=ours(task, *transfers, module="busy_trainer"),
            columns={"per_s": "elements/s"},
            absent={"*": NO_PEER},
        )

    worker = Task(kind="beside worker", seconds=2.0)
    return [
        frames("beside-1m", "1 MB", 1024, GRPC, TCP, TLS, SHARED),
        frames("beside-64k", "64 KB", 256, GRPC, TCP, TLS, SHARED),
        Workload(
            name="beside-worker",
            title="beside a trainer in pure Python: the rate of a process worker, of its rate alone",
            contenders=ours(worker, GRPC, SHARED, module="busy_trainer"),
            columns={"share": "share"},
            absent={"*": NO_PEER},
        ),
    ]


def _shared() -> list[Workload]:
    def sharing(name: str, title: str, transfer: str, task: Task) -> Workload:
        ks = task.options["k"]
        columns = {f"per_s_{k}": f"elements/s, k = {k}" for k in ks} | {f"made_us_{k}": f"us, k = {k}" for k in ks}
        columns |= {f"apart_us_{k}": f"us apart, k = {k}" for k in (ks[0], ks[-1])}
        return Workload(
            name=name,
            title=title,
            contenders=ours(task, transfer, module="sharing"),
            columns=columns,
            absent={"*": NO_PEER},
            runs=3,
            deadline_s=240.0,
        )

    ks = [1, 2, 4, 8, 16]
    columns_text = "each one's rate, CPU of one element, and what the same function costs in a process apart"
    slow = Task(kind="sharing", shape=(500_000,), seconds=2.0, options={"per_s": 100, "k": ks})
    fast = Task(kind="sharing", shape=(4_816_896,), seconds=2.0, options={"per_s": 160, "k": ks})
    return [
        sharing("sharing-grpc", f"k trainers share 50 MB/s over grpc: {columns_text}", GRPC, slow),
        sharing("sharing-shm", "k trainers share 770 MB/s over shared memory: the same", SHARED, fast),
    ]


def _starts() -> Workload:
    task = Task(kind="start", options={"isolation": "thread"})
    entries = {
        f"dsnb, {isolation} workers": ours(replace(task, options={"isolation": isolation}), SAME_HOST, module="start")[
            SAME_HOST
        ]
        for isolation in ("thread", "process")
    }
    return Workload(
        name="start",
        title="import, start of a service with two workers, first element",
        contenders=entries | peers(task, TF),
        columns={"start_s": "seconds"},
        absent={"*": "has no service"},
    )


def _memories() -> list[Workload]:
    task = Task(kind="memory", shape=BATCH)

    def memory(name: str, transfer: str, columns: dict[str, str]) -> Workload:
        return Workload(
            name=name,
            title=f"most memory above the pipeline's own, {transfer.removeprefix('dsnb, ')}: 128 MiB of cache, 16 MiB "
            "in the client",
            contenders=ours(task, transfer, module="memory"),
            columns=columns,
            absent={"*": NO_PEER},
            runs=2,
        )

    apart = {"worker_mb": "MB in the worker", "client_mb": "MB in the client"}
    return [
        memory("memory-grpc", GRPC, apart),
        memory("memory-shm", SHARED, apart),
        memory("memory-local", LOCAL, {"both_mb": "MB"}),
    ]


WORKLOADS: dict[str, Workload] = {
    made.name: made
    for made in (
        *_streams(),
        *_large(),
        *_compressed(),
        _images(),
        _photo_epochs(),
        *_photo_trainers(),
        *_latencies(),
        *_busy_trainer_workloads(),
        *_shared(),
        _starts(),
        *_memories(),
    )
}
