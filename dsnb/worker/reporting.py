"""What a task tells of its pipeline and of those who read it: each trainer, or consumer of a coordinated read."""

from __future__ import annotations

from collections.abc import Callable

from dsnb.pipeline.engine.resume_point import ResumePoint, needs_forgotten, to_text
from dsnb.pipeline.engine.stage import Stage, repeated_seconds, reports
from dsnb.wire.messages import IndexRange, SplitsBehind, StageReport, TaskResume, TrainerReport
from dsnb.worker.pace import Pace, seconds_until
from dsnb.worker.round_robin import RoundRobin
from dsnb.worker.window import Window

_HEAD = "\0head"
"""The name of the pipeline's own pace, which no trainer has."""


def see(pace: Pace, window: Window | RoundRobin, now: float) -> None:
    """Learn how far the pipeline and its readers are now."""
    pace.see(_HEAD, window.head, now)
    for name, place in (window.trainers if isinstance(window, Window) else window.places).items():
        pace.see(name, place.consumed, now)


def trainer_reports(
    window: Window | RoundRobin, pace: Pace, flight_ns: Callable[[str], int]
) -> tuple[TrainerReport, ...]:
    """One for each place in a task's sequence.

    Args:
        window: The sequence.
        pace: How fast everybody is.
        flight_ns: The time that something had been sent to a trainer that it had not consumed.
    """
    if isinstance(window, Window):
        return tuple(_of_trainer(window, pace, name, flight_ns(name)) for name in window.trainers)
    return tuple(
        TrainerReport(
            trainer_id=name,
            clients=int(bool(place.client)),
            consumed=place.consumed,
            offset=window.offset(name),
            lag_bytes=place.nbytes,
            rate=pace.of(name),
            flight_ns=flight_ns(name),
        )
        for name, place in window.places.items()
    )


def stage_reports(stage: Stage | None) -> tuple[StageReport, ...]:
    """One for each operation of a task's pipeline, if it has begun."""
    return tuple(
        StageReport(
            name=r.name,
            depth=r.depth,
            elements=r.elements,
            busy_ns=r.busy_ns,
            wait_ns=r.wait_ns,
            buffered=r.buffered,
            capacity=r.capacity,
            threads=r.threads,
        )
        for r in (reports(stage) if stage is not None else ())
    )


class ResumeReports:
    """Tells where another worker can take a task over; never a place before one that was told."""

    def __init__(self) -> None:
        self._last: tuple[ResumePoint, TaskResume] | None = None

    def report(self, window: Window, stage: Stage, begun: int) -> TaskResume:
        """At the first element that some trainer still needs, or a little before; one that is away may come back.

        Args:
            window: The task's elements.
            stage: Its pipeline.
            begun: How many elements of the pipeline's came before the window's first one, since the stage was built.
        """
        index = min(map(window.offset, window.trainers), default=window.head)
        point = stage.resume_point(index - window.first + begun)
        if self._last is not None and needs_forgotten(point, self._last[0]):
            return self._last[1]  # the dispatcher has forgotten splits that this point needs
        splits = tuple(
            SplitsBehind(provider=source.provider, repetition=source.repetition, count=source.splits)
            for source in point.sources()
        )
        repeated_ms = int(1000 * repeated_seconds(stage, point))
        told = TaskResume(index=index, point=to_text(point), splits=splits, repeated_ms=repeated_ms)
        self._last = point, told
        return told


def _of_trainer(window: Window, pace: Pace, name: str, flight_ns: int) -> TrainerReport:
    trainer, offset = window.trainers[name], window.offset(name)
    return TrainerReport(
        trainer_id=name,
        clients=len(trainer.readers),
        consumed=trainer.consumed,
        offset=offset,
        hits=trainer.hits,
        misses=trainer.misses,
        skipped=trainer.skipped,
        spilled=trainer.spilled,
        lag_bytes=window.frames.bytes_between(offset, window.head),
        on_lag=(trainer.manner.on_lag or "skip") if window.keep else "",
        rate=pace.of(name),
        falls_off_s=_falls_off_s(window, pace, name),
        flight_ns=flight_ns,
        consumed_beyond=tuple(
            IndexRange(first=first, end=end) for first, end in trainer.done.within(offset, trainer.done.end)
        ),
    )


def _falls_off_s(window: Window, pace: Pace, name: str) -> float:
    """Seconds until a trainer that skips misses something, at the present pace."""
    if not window.keep or window.finished or window.trainers[name].holds or window.head == window.tail:
        return 0.0
    free = (window.capacity - window.nbytes) * (window.head - window.tail) / max(1, window.nbytes)
    drift = pace.of(_HEAD) - pace.of(name)
    return seconds_until(window.offset(name) - window.tail + free, drift)
