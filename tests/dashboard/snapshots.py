"""Snapshots written by hand: small, with only what a test is about."""

from __future__ import annotations

from typing import Any

from dsnb.dashboard.feed import FeedHealth, RateSample
from dsnb.dashboard.view import ControlState, Selection, View, view
from dsnb.monitor.rates import Rates, rates
from dsnb.monitor.snapshot import CursorStatus, JobStatus, Snapshot, TaskStatus, TrainerStatus, WorkerStatus
from dsnb.wire.messages import StageReport

SECOND = 1_000_000_000


def snapshot(seq: int = 1, *, time: float | None = None, started: float = 0.0, **rest: Any) -> Snapshot:
    """The service "default" at `time` (one second for each `seq` if left out)."""
    moment = float(seq) if time is None else time
    return Snapshot(version=1, seq=seq, time=moment, service="default", target="grpc://h:1", started=started, **rest)


def job(name: str = "train", *, produced: int = 0, consumed: int = 0, **rest: Any) -> JobStatus:
    """A running, shared OFF job."""
    fields: dict[str, Any] = {
        "anonymous": False,
        "dataset_id": "d",
        "pipeline": "range | batch",
        "mode": "OFF",
        "cached": True,
        "iteration": 0,
        "state": "running",
        "clients": 1,
    }
    return JobStatus(name=name, produced=produced, consumed=consumed, **(fields | rest))


def task(worker: str = "w0", *, head: int = 0, tail: int = 0, **rest: Any) -> TaskStatus:
    """The task `t-<worker>` of that worker."""
    fields: dict[str, Any] = {"iteration": 0, "incarnation": 1, "state": "running"}
    return TaskStatus(task_id=f"t-{worker}", worker=worker, head=head, tail=tail, **(fields | rest))


def place(worker: str = "w0", *, offset: int = 0, lag: int = 0) -> CursorStatus:
    """A place in the task `t-<worker>`."""
    return CursorStatus(task_id=f"t-{worker}", worker=worker, offset=offset, lag=lag)


def trainer(trainer_id: str = "a", *, elements: int = 0, **rest: Any) -> TrainerStatus:
    """A trainer with one client."""
    return TrainerStatus(trainer_id=trainer_id, elements=elements, **({"clients": 1} | rest))


def stage(name: str, *, depth: int = 0, elements: int = 0, busy_ns: int = 0, **rest: Any) -> StageReport:
    """A stage of a pipeline."""
    return StageReport(name=name, depth=depth, elements=elements, busy_ns=busy_ns, **rest)


def worker(name: str = "w0", **rest: Any) -> WorkerStatus:
    """A running thread worker."""
    fields: dict[str, Any] = {
        "uid": f"u-{name}",
        "address": "h:2",
        "state": "running",
        "isolation": "thread",
        "pid": 1,
        "tasks": 1,
    }
    return WorkerStatus(name=name, **(fields | rest))


def seen(
    *snapshots: Snapshot, age_s: float = 0.1, choice: Selection | None = None, control: ControlState | None = None
) -> View:
    """What a page shows after these snapshots, a second apart, the newest `age_s` old."""
    moments = tuple(
        RateSample(
            arrived_at=float(at), wall_time=float(at), snapshot=now, rates=rates(before, now) if before else Rates()
        )
        for at, (before, now) in enumerate(zip((None, *snapshots), snapshots, strict=False))
    )
    health = FeedHealth(age_s=age_s if moments else None)
    return view(moments, health, choice or Selection(), control)
